#pragma once
// In place of CUTLASS's header of this name, which brings every scheduler of every architecture.
#include "coda/scheduler.hpp"
