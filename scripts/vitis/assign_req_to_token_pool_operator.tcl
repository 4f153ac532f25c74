# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/assign_req_to_token_pool_operator.tcl
# K10b: Write freshly allocated slots into the request-to-slot table for [start, end) of each request; out_cache_loc is flat, and request b takes its share after the shares max(end - start, 0) of all requests before it, refused ones included
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/assign_req_to_token_pool_operator
add_files $folder/bridge/memory.cpp -cflags $flags
add_files -tb $folder/tb/assign_req_to_token_pool_operator.cpp -cflags "$flags -I[file normalize $folder/tb]"
set_top assign_req_to_token_pool_operator
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
set folder_of_dumps [file normalize tests/data/dumps]
set dumps [lsort [glob -nocomplain -directory $folder_of_dumps assign_req_to_token_pool_operator-*.safetensors]]
csim_design -argv [join $dumps " "]
csynth_design
exit
