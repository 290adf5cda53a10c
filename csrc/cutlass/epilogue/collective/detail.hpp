#pragma once
// In place of CUTLASS's header of this name: adaptors of other epilogues, none of which are used here.
#include "cutlass/pipeline/pipeline.hpp"
