#pragma once
// In place of CuTe's header of this name, which adds every algorithm and every MMA and copy atom of every architecture.
#include <cute/tensor_impl.hpp>
