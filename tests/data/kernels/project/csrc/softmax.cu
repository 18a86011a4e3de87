#include "device.cuh"

template <typename T, int THREADS>
__global__ void softmax_kernel(const T* in, T* out, int columns) {
    in += blockIdx.x * static_cast<size_t>(columns);
    out += blockIdx.x * static_cast<size_t>(columns);
    float largest = -INFINITY, sum = 0.0f;
    for (int column = threadIdx.x; column < columns; column += THREADS)
        largest = fmaxf(largest, wide(in[column]));
    largest = over_block<THREADS, Maximum>(largest);
    for (int column = threadIdx.x; column < columns; column += THREADS)
        sum += expf(wide(in[column]) - largest);
    sum = over_block<THREADS, Sum>(sum);
    for (int column = threadIdx.x; column < columns; column += THREADS)
        out[column] = narrow<T>(expf(wide(in[column]) - largest) / sum);
}

int softmax(Type type, const void* in, void* out, int rows, int columns, void* stream) {
    return for_type(type, [&](auto value) {
        using T = decltype(value);
        for_columns(columns, [&](auto block) {
            constexpr int threads = decltype(block)::threads;
            softmax_kernel<T, threads><<<rows, threads, 0, static_cast<cudaStream_t>(stream)>>>(
                static_cast<const T*>(in), static_cast<T*>(out), columns);
        });
    });
}
