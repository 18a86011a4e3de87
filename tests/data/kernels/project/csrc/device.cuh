// What the .cu files share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels.h"

// By name: torch compiles with __CUDA_NO_HALF_CONVERSIONS__ and the like.
inline __device__ float wide(float value) { return value; }
inline __device__ float wide(__half value) { return __half2float(value); }
inline __device__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
template <typename T> __device__ T narrow(float value);
template <> inline __device__ float narrow<float>(float value) { return value; }
template <> inline __device__ __half narrow<__half>(float value) { return __float2half(value); }
template <> inline __device__ __nv_bfloat16 narrow<__nv_bfloat16>(float value) { return __float2bfloat16(value); }

struct Sum {
    static __device__ float neutral() { return 0.0f; }
    __device__ float operator()(float a, float b) const { return a + b; }
};
struct Maximum {
    static __device__ float neutral() { return -INFINITY; }
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// The same result in every thread of the block.
template <int THREADS, typename Op> __device__ float over_block(float value) {
    __shared__ float parts[THREADS / 32];
    const Op op;
    for (int step = 16; step > 0; step /= 2) value = op(value, __shfl_xor_sync(~0u, value, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    float all = Op::neutral();
    for (int part = 0; part < THREADS / 32; part++) all = op(all, parts[part]);
    return all;
}

// Calls `run` with a value of the element type.
template <typename Run> int for_type(Type type, Run run) {
    switch (type) {
        case Type::f32: run(float()); break;
        case Type::f16: run(__half()); break;
        case Type::bf16: run(__nv_bfloat16()); break;
    }
    return cudaGetLastError();
}

// Calls `run` with a block size that fits the row, as a type.
template <int THREADS> struct Block { static constexpr int threads = THREADS; };
template <typename Run> void for_columns(int columns, Run run) {
    if (columns <= 64) run(Block<64>());
    else if (columns <= 256) run(Block<256>());
    else run(Block<1024>());
}
