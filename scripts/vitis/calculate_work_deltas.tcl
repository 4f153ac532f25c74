# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/calculate_work_deltas.tcl
# K3: G[k]: mean over the batch of the extra score mass that verifying k of the new nodes brings, at verify_num nodes in all
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/calculate_work_deltas
add_files $folder/bridge/growth.cpp -cflags $flags
add_files -tb $folder/tb/calculate_work_deltas.cpp -cflags "$flags -I[file normalize $folder/tb]"
set_top calculate_work_deltas
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
set folder_of_dumps [file normalize tests/data/dumps]
set dumps [lsort [glob -nocomplain -directory $folder_of_dumps calculate_work_deltas-*.safetensors]]
csim_design -argv [join $dumps " "]
csynth_design
exit
