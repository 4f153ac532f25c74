# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/update_cumu_draft_state.tcl
# K2: Store the layer's W*K nodes with their links, emit the next frontier's candidates and keep the running order of scores
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/update_cumu_draft_state
add_files $folder/bridge/growth.cpp -cflags $flags
add_files -tb $folder/tb/update_cumu_draft_state.cpp -cflags "$flags -I[file normalize $folder/tb]"
set_top update_cumu_draft_state
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
set folder_of_dumps [file normalize tests/data/dumps]
set dumps [lsort [glob -nocomplain -directory $folder_of_dumps update_cumu_draft_state-*.safetensors]]
csim_design -argv [join $dumps " "]
csynth_design
exit
