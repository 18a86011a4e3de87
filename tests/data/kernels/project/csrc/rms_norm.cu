#include "device.cuh"

template <typename T, int THREADS>
__global__ void rms_norm_kernel(const T* in, const T* weight, T* out, int columns, float eps) {
    in += blockIdx.x * static_cast<size_t>(columns);
    out += blockIdx.x * static_cast<size_t>(columns);
    float squares = 0.0f;
    for (int column = threadIdx.x; column < columns; column += THREADS)
        squares += wide(narrow<T>(wide(in[column]) * wide(in[column])));
    const float scale = rsqrtf(over_block<THREADS, Sum>(squares) / columns + eps);
    for (int column = threadIdx.x; column < columns; column += THREADS)
        out[column] = narrow<T>(wide(in[column]) * scale * wide(weight[column]));
}

int rms_norm(Type type, const void* in, const void* weight, void* out, int rows, int columns, float eps,
             void* stream) {
    return for_type(type, [&](auto value) {
        using T = decltype(value);
        for_columns(columns, [&](auto block) {
            constexpr int threads = decltype(block)::threads;
            rms_norm_kernel<T, threads><<<rows, threads, 0, static_cast<cudaStream_t>(stream)>>>(
                static_cast<const T*>(in), static_cast<const T*>(weight), static_cast<T*>(out), columns, eps);
        });
    });
}
