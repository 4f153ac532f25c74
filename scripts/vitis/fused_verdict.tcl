# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/fused_verdict.tcl
# F2: K5, K6 and K7 in one region: every row of target logits is read once, the walk takes its step while the row is on chip, and the commit follows from the path
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/fused_verdict
add_files $folder/bridge/fused.cpp -cflags $flags
set_top fused_verdict
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
csynth_design
exit
