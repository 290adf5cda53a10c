#pragma once
// In place of CuTe's header of this name: Blackwell's copies, one of which CUTLASS's dispatch policies name as a default.
namespace cute {
struct SM100_TMEM_LOAD_32dp32b32x;
}
