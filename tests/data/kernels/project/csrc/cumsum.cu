#include "device.cuh"

template <typename T, int THREADS>
__global__ void cumsum_kernel(const T* in, T* out, int columns) {
    __shared__ float sums[THREADS];
    in += blockIdx.x * static_cast<size_t>(columns);
    out += blockIdx.x * static_cast<size_t>(columns);
    float before = 0.0f;
    for (int start = 0; start < columns; start += THREADS) {
        const int column = start + threadIdx.x;
        sums[threadIdx.x] = column < columns ? wide(in[column]) : 0.0f;
        for (int reach = 1; reach < THREADS; reach *= 2) {
            __syncthreads();
            const float left = threadIdx.x >= reach ? sums[threadIdx.x - reach] : 0.0f;
            __syncthreads();
            sums[threadIdx.x] += left;
        }
        __syncthreads();
        if (column < columns) out[column] = narrow<T>(before + sums[threadIdx.x]);
        before += sums[THREADS - 1];
        __syncthreads();
    }
}

int cumsum(Type type, const void* in, void* out, int rows, int columns, void* stream) {
    return for_type(type, [&](auto value) {
        using T = decltype(value);
        for_columns(columns, [&](auto block) {
            constexpr int threads = decltype(block)::threads;
            cumsum_kernel<T, threads><<<rows, threads, 0, static_cast<cudaStream_t>(stream)>>>(
                static_cast<const T*>(in), static_cast<T*>(out), columns);
        });
    });
}
