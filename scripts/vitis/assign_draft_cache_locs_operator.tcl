# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/assign_draft_cache_locs_operator.tcl
# K10a: Write freshly allocated draft slots into the request-to-slot table for [start, end) of each request; request b takes the first end - start entries of row b of out_cache_loc
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/assign_draft_cache_locs_operator
add_files $folder/bridge/memory.cpp -cflags $flags
add_files -tb $folder/tb/assign_draft_cache_locs_operator.cpp -cflags "$flags -I[file normalize $folder/tb]"
set_top assign_draft_cache_locs_operator
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
set folder_of_dumps [file normalize tests/data/dumps]
set dumps [lsort [glob -nocomplain -directory $folder_of_dumps assign_draft_cache_locs_operator-*.safetensors]]
csim_design -argv [join $dumps " "]
csynth_design
exit
