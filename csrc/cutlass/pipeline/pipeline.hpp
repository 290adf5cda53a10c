#pragma once
// In place of CUTLASS's header of this name, which adds the pipelines of Blackwell.
#include "cutlass/pipeline/sm90_pipeline.hpp"
