# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/draft_tree_reject_sample.tcl
# K6: Walk each request's tree from the root and take what the target would have said
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/draft_tree_reject_sample
add_files $folder/bridge/verdict.cpp -cflags $flags
add_files -tb $folder/tb/draft_tree_reject_sample.cpp -cflags "$flags -I[file normalize $folder/tb]"
set_top draft_tree_reject_sample
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
set folder_of_dumps [file normalize tests/data/dumps]
set dumps [lsort [glob -nocomplain -directory $folder_of_dumps draft_tree_reject_sample-*.safetensors]]
csim_design -argv [join $dumps " "]
csynth_design
exit
