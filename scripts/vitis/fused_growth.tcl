# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/fused_growth.tcl
# F1: K1, K2, K3 and the gather of the next frontier, level after level, then the best verify_num nodes as rows (K10c) with their slot lists and packed masks (K4), in one region
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/fused_growth
add_files $folder/bridge/fused.cpp -cflags $flags
set_top fused_growth
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
csynth_design
exit
