// Routed experts (SWIGLU, weighted) by a ggml of another build: tensors and calls in from a file, rows out to another.
// Written by verdicts_bench.py, which says what the file holds.
#include "ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

struct Weights {
    int32_t type;
    int64_t ne[3];
    std::vector<char> data;
};

static FILE * in;

template <typename T> static T read() {
    T value;
    if (fread(&value, sizeof value, 1, in) != 1) exit(2);
    return value;
}

template <typename T> static std::vector<T> read_all(size_t count) {
    std::vector<T> values(count);
    if (count && fread(values.data(), sizeof(T), count, in) != count) exit(2);
    return values;
}

static Weights read_weights() {
    Weights weights;
    weights.type = read<int32_t>();
    for (auto & n : weights.ne) n = read<int64_t>();
    weights.data = read_all<char>(read<int64_t>());
    return weights;
}

int main(int, char ** arguments) {
    in = fopen(arguments[1], "rb");
    FILE * out = fopen(arguments[2], "wb");
    if (!in || !out) return 1;
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, 1);
    std::vector<Weights> layers; // gate, up, down of each
    for (int32_t left = 3 * read<int32_t>(); left > 0; left--) layers.push_back(read_weights());
    for (int32_t left = read<int32_t>(); left > 0; left--) {
        const int32_t layer = read<int32_t>(), rows = read<int32_t>(), used = read<int32_t>(), width = read<int32_t>();
        auto x = read_all<float>((size_t) rows * width);
        auto ids = read_all<int32_t>((size_t) rows * used);
        auto weights = read_all<float>((size_t) rows * used);
        ggml_context * context = ggml_init({64 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true});
        ggml_tensor * matrices[3];
        for (int i = 0; i < 3; i++) {
            const Weights & w = layers[3 * layer + i];
            matrices[i] = ggml_new_tensor_3d(context, (ggml_type) w.type, w.ne[0], w.ne[1], w.ne[2]);
        }
        ggml_tensor * input = ggml_new_tensor_3d(context, GGML_TYPE_F32, width, 1, rows);
        ggml_tensor * chosen = ggml_new_tensor_2d(context, GGML_TYPE_I32, used, rows);
        ggml_tensor * factors = ggml_new_tensor_3d(context, GGML_TYPE_F32, 1, used, rows);
        ggml_tensor * gate = ggml_mul_mat_id(context, matrices[0], input, chosen);
        ggml_tensor * up = ggml_mul_mat_id(context, matrices[1], input, chosen);
        ggml_tensor * down = ggml_mul_mat_id(context, matrices[2], ggml_swiglu_split(context, gate, up), chosen);
        ggml_tensor * output = ggml_mul(context, down, factors);
        ggml_cgraph * graph = ggml_new_graph(context);
        ggml_build_forward_expand(graph, output);
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(context, backend);
        for (int i = 0; i < 3; i++) {
            const auto & data = layers[3 * layer + i].data;
            ggml_backend_tensor_set(matrices[i], data.data(), 0, data.size());
        }
        ggml_backend_tensor_set(input, x.data(), 0, x.size() * sizeof(float));
        ggml_backend_tensor_set(chosen, ids.data(), 0, ids.size() * sizeof(int32_t));
        ggml_backend_tensor_set(factors, weights.data(), 0, weights.size() * sizeof(float));
        ggml_backend_graph_compute(backend, graph);
        std::vector<float> result(ggml_nelements(output));
        ggml_backend_tensor_get(output, result.data(), 0, result.size() * sizeof(float));
        fwrite(result.data(), sizeof(float), result.size(), out);
        ggml_backend_buffer_free(buffer);
        ggml_free(context);
    }
    return fclose(out);
}
