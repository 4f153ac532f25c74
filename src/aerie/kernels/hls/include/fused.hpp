// Every fused region: they share one chip, so what one leaves there the next one finds.
#pragma once

#include "fused_draft.hpp"
#include "fused_tree.hpp"
