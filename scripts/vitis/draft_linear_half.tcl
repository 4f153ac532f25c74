# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/draft_linear_half.tcl
# D: Rows times a 16-bit weight; sums in float32, groups of 128 in order
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/draft_linear_half
add_files $folder/bridge/drafter.cpp -cflags $flags
set_top draft_linear_half
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
csynth_design
exit
