#define NCCL_MAJOR 2
#define NCCL_MINOR 26
#define NCCL_PATCH 2
