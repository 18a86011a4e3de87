#include "device.cuh"

template <typename T, int TILE>
__global__ void matmul_kernel(const T* a, const T* b, T* out, int m, int n, int k) {
    __shared__ float left[TILE][TILE], right[TILE][TILE + 1];
    const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int start = 0; start < k; start += TILE) {
        const int x = start + threadIdx.x, y = start + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = row < m && x < k ? wide(a[row * static_cast<size_t>(k) + x]) : 0.0f;
        right[threadIdx.y][threadIdx.x] =
            y < k && column < n ? wide(b[y * static_cast<size_t>(n) + column]) : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; i++) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n) out[row * static_cast<size_t>(n) + column] = narrow<T>(sum);
}

template <typename T, int TILE>
void launch(const void* a, const void* b, void* out, int m, int n, int k, void* stream) {
    const dim3 grid((n + TILE - 1) / TILE, (m + TILE - 1) / TILE), block(TILE, TILE);
    matmul_kernel<T, TILE><<<grid, block, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out), m, n, k);
}

int matmul(Type type, const void* a, const void* b, void* out, int m, int n, int k, void* stream) {
    return for_type(type, [&](auto value) {
        using T = decltype(value);
        if (m <= 64 || n <= 64) launch<T, 16>(a, b, out, m, n, k, stream);
        else launch<T, 32>(a, b, out, m, n, k, stream);
    });
}
