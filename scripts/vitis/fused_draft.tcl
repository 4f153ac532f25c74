# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/fused_draft.tcl
# F3: A draft round: the features of new tokens through the head (fc, attention, feed-forward), its vocabulary streamed into running top lists, then level after level of the tree as in fused_growth, every level fed from the chip
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/fused_draft
add_files $folder/bridge/fused.cpp -cflags $flags
set_top fused_draft
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
csynth_design
exit
