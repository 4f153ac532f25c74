# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/fused_tree_mask_operator.tcl
# K4: KV slot lists (prefix, then the request's own tree rows, both from the table row [0, seq_len + rows)) and the visibility of every (row, column) packed to bits: prefix columns visible, tree columns by ancestor_bits
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/fused_tree_mask_operator
add_files $folder/bridge/layout.cpp -cflags $flags
add_files -tb $folder/tb/fused_tree_mask_operator.cpp -cflags "$flags -I[file normalize $folder/tb]"
set_top fused_tree_mask_operator
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
set folder_of_dumps [file normalize tests/data/dumps]
set dumps [lsort [glob -nocomplain -directory $folder_of_dumps fused_tree_mask_operator-*.safetensors]]
csim_design -argv [join $dumps " "]
csynth_design
exit
