# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/draft_softmax.tcl
# D: Probabilities of draft logits, by the table that K5 uses
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/draft_softmax
add_files $folder/bridge/drafter.cpp -cflags $flags
set_top draft_softmax
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
csynth_design
exit
