# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/convert_logits_to_probas.tcl
# K5: Softmax of ragged rows at each request's temperature: t = x/T and d = t - max t in float32, exp(d) summed in float64
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/convert_logits_to_probas
add_files $folder/bridge/verdict.cpp -cflags $flags
add_files -tb $folder/tb/convert_logits_to_probas.cpp -cflags "$flags -I[file normalize $folder/tb]"
set_top convert_logits_to_probas
open_solution -reset solution -flow_target vivado
set_part {xcv80-lsva4737-2MHP-e-S}
create_clock -period 3.33 -name clock
set folder_of_dumps [file normalize tests/data/dumps]
set dumps [lsort [glob -nocomplain -directory $folder_of_dumps convert_logits_to_probas-*.safetensors]]
csim_design -argv [join $dumps " "]
csynth_design
exit
