// What the kernels offer. No header of CUDA or torch: each .cu file then takes seconds.
#pragma once

enum class Type { f32, f16, bf16 };

// All matrices are contiguous, row by row; sizes in elements. Each returns cudaGetLastError().
int cumsum(Type type, const void* in, void* out, int rows, int columns, void* stream);
int matmul(Type type, const void* a, const void* b, void* out, int m, int n, int k, void* stream);
int rms_norm(Type type, const void* in, const void* weight, void* out, int rows, int columns, float eps,
             void* stream);
int softmax(Type type, const void* in, void* out, int rows, int columns, void* stream);
