// What the version of torch has that this is built for.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/version.h>

// Older ones split and shrink groups of NCCL only.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
#define GOCCL_TORCH_SPLITS
#endif

// Back ends of older ones keep the timeout that they were made with.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
#define GOCCL_TORCH_TIMEOUTS
#endif

// Groups of older ones keep the rank and the size that they were made with.
#ifdef C10D_BACKEND_HAS_RECONFIGURE
#define GOCCL_TORCH_RECONFIGURES
#endif

// Older ones do not ask a group whether it has members.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
#define GOCCL_TORCH_ASKS_FOR_MEMBERS
#endif

// Older ones have no one-sided windows.
#ifdef C10D_BACKEND_HAS_WINDOW
#define GOCCL_TORCH_WINDOWS
#endif

// Those of older ones are NCCL's own, but for registerOnCompletionHook().
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
#define GOCCL_TORCH_HOOKS
#endif
