// What is used of torch/extension.h, which takes 20 s to compile.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/utils/pybind.h>

#include "kernels.h"

static Type type_of(const at::Tensor& tensor) {
    TORCH_CHECK(tensor.is_cuda() && tensor.is_contiguous() && tensor.dim() <= 2,
                "a contiguous matrix on a GPU is wanted");
    switch (tensor.scalar_type()) {
        case at::kFloat: return Type::f32;
        case at::kHalf: return Type::f16;
        case at::kBFloat16: return Type::bf16;
        default: TORCH_CHECK(false, "float32, float16 or bfloat16 is wanted");
    }
}

static at::Tensor checked(at::Tensor out, int code) {
    TORCH_CHECK(code == 0, "CUDA error ", code);
    return out;
}

static void* as_stream(int64_t stream) { return reinterpret_cast<void*>(stream); }

static at::Tensor cumsum_of(const at::Tensor& in, int64_t stream) {
    auto out = at::empty_like(in);
    return checked(out, cumsum(type_of(in), in.data_ptr(), out.data_ptr(), in.size(0), in.size(1),
                               as_stream(stream)));
}

static at::Tensor matmul_of(const at::Tensor& a, const at::Tensor& b, int64_t stream) {
    TORCH_CHECK(type_of(a) == type_of(b) && a.size(1) == b.size(0), "these matrices do not fit");
    auto out = at::empty({a.size(0), b.size(1)}, a.options());
    return checked(out, matmul(type_of(a), a.data_ptr(), b.data_ptr(), out.data_ptr(), a.size(0), b.size(1),
                               a.size(1), as_stream(stream)));
}

static at::Tensor rms_norm_of(const at::Tensor& in, const at::Tensor& weight, double eps, int64_t stream) {
    TORCH_CHECK(type_of(in) == type_of(weight) && in.size(1) == weight.numel(), "the weight does not fit");
    auto out = at::empty_like(in);
    return checked(out, rms_norm(type_of(in), in.data_ptr(), weight.data_ptr(), out.data_ptr(), in.size(0),
                                 in.size(1), eps, as_stream(stream)));
}

static at::Tensor softmax_of(const at::Tensor& in, int64_t stream) {
    auto out = at::empty_like(in);
    return checked(out, softmax(type_of(in), in.data_ptr(), out.data_ptr(), in.size(0), in.size(1),
                                as_stream(stream)));
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.def("cumsum", &cumsum_of);
    module.def("matmul", &matmul_of);
    module.def("rms_norm", &rms_norm_of);
    module.def("softmax", &softmax_of);
}
