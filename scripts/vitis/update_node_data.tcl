# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/update_node_data.tcl
# K10c: From the node store and the planner's choice, the flat ragged rows the target verifies: ascending node id inside a request, links as rows within the request, derived from prev_indexs alone
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/update_node_data
add_files $folder/bridge/layout.cpp -cflags $flags
add_files -tb $folder/tb/update_node_data.cpp -cflags "$flags -I[file normalize $folder/tb]"
set_top update_node_data
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
set folder_of_dumps [file normalize tests/data/dumps]
set dumps [lsort [glob -nocomplain -directory $folder_of_dumps update_node_data-*.safetensors]]
csim_design -argv [join $dumps " "]
csynth_design
exit
