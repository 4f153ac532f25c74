# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/update_verify_result.tcl
# K7: Emit accepted tokens then the bonus, cut after the first stop token (kept) or at length_limit (prompt and output tokens together; seq_len + 1 are committed already)
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/update_verify_result
add_files $folder/bridge/commit.cpp -cflags $flags
add_files -tb $folder/tb/update_verify_result.cpp -cflags "$flags -I[file normalize $folder/tb]"
set_top update_verify_result
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
set folder_of_dumps [file normalize tests/data/dumps]
set dumps [lsort [glob -nocomplain -directory $folder_of_dumps update_verify_result-*.safetensors]]
csim_design -argv [join $dumps " "]
csynth_design
exit
