# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/calculate_verify_kv_qo_ms.tcl
# K9: Running offsets of a verify batch: rows, KV entries (seq_len + rows) and mask bytes (ceil(rows * columns / 8)) of each request
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/calculate_verify_kv_qo_ms
add_files $folder/bridge/layout.cpp -cflags $flags
add_files -tb $folder/tb/calculate_verify_kv_qo_ms.cpp -cflags "$flags -I[file normalize $folder/tb]"
set_top calculate_verify_kv_qo_ms
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
set folder_of_dumps [file normalize tests/data/dumps]
set dumps [lsort [glob -nocomplain -directory $folder_of_dumps calculate_verify_kv_qo_ms-*.safetensors]]
csim_design -argv [join $dumps " "]
csynth_design
exit
