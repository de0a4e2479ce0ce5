// The virtual TPU: a PJRT plugin that presents the devices of OpenXLA's CPU plugin as TPUs.
//
// A folder includes headers of its own and of folders above it in this list, never of one below.
//
// api/         what every room uses: the backend, errors, events, the identity of devices
//   backend.c    the CPU plugin that does the work
//   bridge.c     one trampoline for each entry, for callers whose structs are smaller than ours
//   errors.c     errors of our own among the backend's
//   events.c     one line for each event, in a file that all processes of a case append to
//   lists.c      what is known of objects, by their addresses
//   memory.c     memory that is there, or the process ends
//   numbers.c    decimal numbers in text, within bounds
//   description.c  what a platform says of its devices, in variables that its lane sets
//   identity.c   what makes a CPU device a TPU: kind, coordinates, slice
//   place.c      a process's place in its job, where clients say it
//   devices.c    which devices a process may address, in a job of several processes
//   stablehlo.c  which StableHLO programs may be written in, and which the backend can't read
//   extensions.c host memory and the number of chips, which TorchTPU asks libtpu for
//   profiler.c   a profiler that records nothing, for frameworks that start one unasked
//   wrong_answers.c  answers that are wrong on purpose
//   python.c     the Python half, when the process is a Python one; python.h
//     questions.c  what threads that must not wait for the GIL ask it
//     frames.c     where a thread is in Python, read without the GIL
// compile/     from a submitted program to an executable
//   programs.c   the call that compiles
//   replacements.c  what the Python half replaces in a program: kernels, and what the CPU lacks
//   shared.c     equal programs are one executable
//   compilations.c  what forked ranks compile once for all of them
//   optimized.c  the optimized program of an executable
//   options.c    what a compilation may ask for, and which of it the CPU's compiler is given
//   refusals.c   what the CPU's compiler refuses, in words for whoever submitted the program
//   parameters.c arguments that do not match an executable's parameters
//   memories.c   in which memory an executable's results are
//   layouts.c    copies of arrays that are not row-major
//   protos.c     what old and new XLA disagree on inside of programs
//   wire.c       protocol buffers without their schema
// host/        functions of the host that a running program calls; ffi.h
//   ffi.c        how XLA hands them a call
//   foreign_handlers.c  handlers of other libraries, such as jaxlib's of LAPACK
//   host_callbacks.c  what a program asks of the Python half: JAX's TPU interpret mode
//   host_transfers.c  what a program sends to its host and receives: JAX's callbacks
// job/         the processes of a job
//   job.c        the connection to the process in which the ranks of a job meet
//   megascale.c  the discovery of all slices by all slices
//   coordinator.c  slice 0's side of it: lets in who has the job's token
//   lines.c      lines of bounded size from a socket
// meet/        executing, in this process or together with others; meet.h, and meeting.h inside
//   executions.c the call that executes
//   unseen.c     executions that end in an error, and whether the user has been given it
//   rethrown.c   which of them torch_xla has raised, though it keeps them to raise them again
//   usage.c      how much memory the buffers of each device take
//   raw_buffers.c the bytes of a buffer, which TorchTPU's windows copy to and from
//   gather.c     whether threads of one process that meet need the job's executor
//   meeting.c    a program over the devices of several processes, as one of them sees it
//   exchanges.c  which programs those are
//   copies.c     what is copied without another thread
//   segments.c   the memory that arguments and results are handed over in; segment.h
//   tickets.c    executions on their way
//   transfers.c  what one process sends to another; transfers.h
//   host_requests.c  what a program in the executor asks of the host of this process
//   executor.c   the process that runs such programs
// plugin.c     GetPjrtApi: the table of entries
// clients.c    creating and destroying a client
// forward.c    instead of all that: another library's own table, with its calls counted
// fewer_devices.c  the first few of that library's devices, as if it had no others
#ifndef XLA_HARNESS_VIRTUAL_TPU_PLUGIN_H_
#define XLA_HARNESS_VIRTUAL_TPU_PLUGIN_H_

#include "meet/meet.h"

// --- clients.c
void clients_fill(PJRT_Api *api);

// --- forward.c
// Return the table of the library at `path`, whose clients, compilations and executions are events.
// On failure returns NULL and writes why into `wrong`.
const PJRT_Api *forward_api(const char *path, char *wrong, size_t size);

// --- fewer_devices.c
// Put entries in front of those of `api` that show no more devices of a client than
// VIRTUAL_TPU_FORWARD_DEVICES says; without the variable, all are shown.
void fewer_fill(PJRT_Api *api);

#endif  // XLA_HARNESS_VIRTUAL_TPU_PLUGIN_H_
