// The virtual TPU: a PJRT plugin that presents the devices of OpenXLA's CPU plugin as TPUs.
//
// plugin.c    GetPjrtApi: the table of entries, and the backend behind it
// bridge.c    one trampoline an entry, for callers whose structs are smaller than ours
// identity.c  what makes a CPU device a TPU: kind, coordinates, slice
// clients.c   creating a client: what a discovery is
// programs.c  compile and execute: kernels and what the CPU lacks replaced, equal programs shared,
//             ids made small
// stablehlo.c which StableHLO programs may be written in, and which the backend can't read
// ffi.c       functions that a running program calls; ffi.h
//   host_callbacks.c  what it asks of the Python half: JAX's TPU interpret mode
//   host_transfers.c  what it sends to its host and receives: JAX's callbacks
// parameters.c  arguments that are not what an executable's parameters are
// donors.c    arguments that an executable takes though no result has their memory
// compilations.c  what forked ranks compile once for all
// memories.c  in which memory an executable's results are
// usage.c     how much memory the buffers of each device take
// devices.c   which devices a process may address, in a job of several
// job.c       the connection to the process in which the ranks of a job meet
// gather.c    whether threads of one process that meet need that other process
// meeting.c   a program over the devices of several processes, as one of them sees it; meeting.h
// exchanges.c   which programs that are
// copies.c      what is copied without another thread
// segments.c    the memory that arguments and results are handed over in
// tickets.c     executions on their way
//   transfers.c   what one process sends to another
//   asked.c       what a program that the executor runs asks this process's host for
// executor.c  the same in the process that runs it
// megascale.c the discovery of all slices by all slices
// coordinator.c  slice 0's side of it: lets in who has the job's token
// lines.c     lines of bounded size from a socket
// numbers.c   numbers out of text, within bounds
// unseen.c    executions that end in an error, and whether the user has been given it
// rethrown.c  which of them torch_xla has raised, though it keeps them to raise them again
// errors.c    errors of our own among the backend's
// options.c   what a compilation may ask for, and which of it the CPU's compiler is given
// refusals.c  what the CPU's compiler refuses, in words for whoever submitted the program
// protos.c    what old and new XLA disagree on inside of programs
// wire.c      protocol buffers without their schema
// events.c    one line an event, in a file that all processes of a case append to
// profiler.c  a profiler that records nothing, for frameworks that start one unasked
// extensions.c  host memory and the number of chips, which TorchTPU asks libtpu for
// raw_buffers.c the bytes of a buffer, which TorchTPU's windows copy to and from
// forward.c   instead of all that: another library's own table, with its calls counted
// python.c    the Python half, when the process is a Python one; python.h
//   questions.c   what is asked of it by threads that must not wait for the GIL
//   frames.c      where a thread is in Python, without asking
#ifndef XLA_HARNESS_VIRTUAL_TPU_PLUGIN_H_
#define XLA_HARNESS_VIRTUAL_TPU_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#include "pjrt_c_api.h"

// Other names let a second copy of this library stand for libtpu, behind the one that forwards.
#ifndef FORWARD_VARIABLE
#define FORWARD_VARIABLE "VIRTUAL_TPU_FORWARD"
#endif
#ifndef EVENTS_VARIABLE
#define EVENTS_VARIABLE "XLA_HARNESS_EVENTS"
#endif

#define VIRTUAL_TPU_EXPORT __attribute__((visibility("default")))

// The CPU plugin's own entries; NULL when it could not be loaded, and then every entry of ours
// returns an error that says why.
extern const PJRT_Api *backend;

// --- errors.c
// An error of our own, printf-like; the backend's errors are a different kind of object.
PJRT_Error *error_new(PJRT_Error_Code code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void error_destroy(PJRT_Error_Destroy_Args *args);
void error_message(PJRT_Error_Message_Args *args);
PJRT_Error *error_get_code(PJRT_Error_GetCode_Args *args);
PJRT_Error_Code error_code(const PJRT_Error *error);
// An error's text, to be freed; the error is.
char *error_text(PJRT_Error *error);
// Of an error that changes nothing; NULL is none.
void error_drop(PJRT_Error *error);
// Destroy an event that nobody waits for.
void event_drop(PJRT_Event *event);
// Wait for an event, which is destroyed, and may be NULL: its error.
PJRT_Error *event_await(PJRT_Event *event);
// Call an entry of the backend, in a function that returns an error.
#define TRY(entry, args)                          \
  do {                                            \
    PJRT_Error *error_ = backend->entry(&(args)); \
    if (error_ != NULL) return error_;            \
  } while (0)

// --- plugin.c
// The table of the library at `path`, which the variable `name` names; NULL, and in `wrong` why.
const PJRT_Api *api_of(const char *name, const char *path, char *wrong, size_t size);
// Why there is no backend.
PJRT_Error *backend_missing(void);

// --- bridge.c
// Fill `api` with one trampoline for each entry that the backend has.
void bridge_fill(PJRT_Api *api);
// A copy at this plugin's size; an error if `from` can't be an older caller's.
PJRT_Error *widen_PJRT_ExecuteOptions(PJRT_ExecuteOptions *wide, const PJRT_ExecuteOptions *from);
// The trampoline of each entry, for the calls that add something of their own.
#define ENTRY(call, ...) PJRT_Error *bridge_##call(call##_Args *args);
#define VOID_ENTRY(call, ...)
#define STRUCT(name, ...)
#include "entries.inc"
#undef ENTRY
#undef VOID_ENTRY
#undef STRUCT

// --- identity.c
typedef struct {
  int slices, devices;           // of the whole job, and of one slice
  int slices_here, first_slice;  // all from 0, or this process's own in a job of several
  int bounds[3];                 // of one slice's mesh of chips
  int grid[3];                   // of the processes that a slice's chips are divided among
  int process, processes;        // this one's index in the whole job, and how many there are
  int of_chip;                   // devices that one chip is
  int cores;                     // of one device
  int64_t memory;                // of one device, in bytes
  char kind[64], version[512];
} Identity;
extern Identity identity;
// Read the environment; NULL, or what is wrong with it.
PJRT_Error *identity_read(void);
int identity_total(void);
// Of the device with that id: the process that it belongs to, and whether that is this one.
int identity_process_of(int id);
int identity_is_own(int id);
// Its index among the devices of this process, or -1.
int identity_local(int id);
void identity_fill(PJRT_Api *api);

// --- numbers.c
// Read a decimal number from `low` to `high` at `*text` and move `*text` behind it; 0, and nothing
// is changed, when there is none. Only digits: neither a sign nor space.
int number_read(const char **text, int low, int high, int *number);
// The same where `text`, which may be NULL, is nothing but the number.
int number_whole(const char *text, int low, int high, int *number);

// --- lines.c
enum { MOST_LINE = 192 };
typedef struct {
  int socket;
  size_t used, taken;
  char text[MOST_LINE];
} Lines;
// Take in what has come, without waiting; 0 at the end of the connection, or when it sends what is
// no text or a line that is too long.
int lines_receive(Lines *lines);
// The next whole line, without its end, until the next call; NULL when there is none.
const char *lines_next(Lines *lines);
// Send a short printf-like line.
void lines_send(int socket, const char *format, ...) __attribute__((format(printf, 2, 3)));
// What follows `word` and a space in a line; NULL when it is another word's.
const char *line_after(const char *line, const char *word);

// --- coordinator.c
enum { MOST_MEMBERS = 256, MOST_TOKEN = 128 };
struct addrinfo;
// Serve the discovery of so many processes in a thread of its own; 0, or an errno.
int coordinator_serve(const struct addrinfo *address, const char *token, int processes);

// --- megascale.c
// Of a clock that only goes forward.
int64_t milliseconds(void);
// Whether a client created now makes this slice discover all others.
int megascale_discovers(void);
// Do so: returns when all slices have come, or an error at the deadline.
PJRT_Error *megascale_discover(void);

// --- events.c
// Append an event. `caller` is an address in the library that called; `format` makes the JSON
// members that only this event has, with a leading comma, or is "".
void event_write(const char *event, const void *caller, const char *stack, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
// What became of a planted fault: it was given to the compiler, which has taken or refused it, and
// was executed.
void event_plant(const void *caller, const char *stage);
// `text` as a JSON string, in quotes, cut to `size`; NULL is null.
const char *event_quote(char *out, size_t size, const char *text);
int event_wants_stack(const char *event);
// Append what is known of a program that is compiled.
void event_compilation(const char *event, const void *caller, const PJRT_Program *program);

// --- wrong_answers.c
// Whether the plugin is to give this answer wrongly; it is written down that it does.
int answers_wrongly(const char *name);

// --- clients.c
void clients_fill(PJRT_Api *api);

// --- programs.c
void programs_fill(PJRT_Api *api);
void programs_forget(const PJRT_Client *client);
// What the backend's compiler has made of a program, whose code is to be freed.
PJRT_Error *program_optimized(PJRT_LoadedExecutable *loaded, PJRT_Program *out);

// --- host_transfers.c
// Where what a program sends goes to, and what it receives comes from. Both return an error's text,
// to be freed, or NULL. `ordinal` is the device's, within this process's client.
typedef struct HostSide {
  char *(*send)(struct HostSide *side, int ordinal, int64_t channel, const void *data, size_t size);
  char *(*receive)(struct HostSide *side, int ordinal, int64_t channel, void *data, size_t size);
} HostSide;
// The functions that an execution's caller gives for each channel of each device.
typedef struct HostTransfers HostTransfers;
// NULL when the caller gives none.
HostTransfers *host_transfers_new(const PJRT_ExecuteOptions *options, PJRT_Device *const *devices,
                                  size_t count);
// The same for an execution in this process, whose options are made to name them.
PJRT_Error *host_transfers_begin(const PJRT_LoadedExecutable_Execute_Args *args,
                                 HostTransfers **out);
// Keep it for one call more, as one device.
void host_transfers_hold(HostTransfers *transfers);
// Whether calls run for which it is kept, of an execution on so many devices; NULL is fine. And
// wait until none does.
int host_transfers_run(HostTransfers *transfers, size_t devices);
void host_transfers_await(HostTransfers *transfers, size_t devices);
// So many of the devices have ended; NULL is fine.
void host_transfers_leave(HostTransfers *transfers, size_t count);
// What one of the devices sends or receives: an error's text, to be freed, or NULL.
char *host_transfers_send(HostTransfers *transfers, size_t index, int64_t channel, const void *data,
                          size_t size);
char *host_transfers_receive(HostTransfers *transfers, size_t index, int64_t channel, void *data,
                             size_t size);
// Have an execution's handlers find its host side. A context that is made for that is the caller's
// to destroy when the execution has ended.
PJRT_Error *host_side_attach(HostSide *side, PJRT_ExecuteOptions *options,
                             PJRT_ExecuteContext **made);
void host_transfers_register(void);
void host_transfers_fill(PJRT_Api *api);

// --- parameters.c
// Return an error that names the first argument that is not of its parameter's type and dimensions:
// the CPU's client compares sizes only, and would read one as the other.
PJRT_Error *parameters_check(const PJRT_LoadedExecutable_Execute_Args *args);
// Forget an executable that ends, or whose address a new one has got.
void parameters_forget(const PJRT_LoadedExecutable *executable);
// Return how many results an executable has on each device; 0 of one that is deleted.
size_t parameters_results(PJRT_LoadedExecutable *executable);

// --- donors.c
// What an executable takes of its arguments, from the program that it was compiled from.
PJRT_Error *donors_learn(PJRT_LoadedExecutable *loaded, const PJRT_Program *submitted);
// The same from what it was loaded from.
void donors_learn_serialized(const PJRT_LoadedExecutable *loaded, const char *executable,
                             size_t size);
void donors_forget(const PJRT_LoadedExecutable *executable);
// Whether an argument is one of the donated parameters, and the caller has not said otherwise.
int is_donated(const int64_t *donated, size_t count, const PJRT_ExecuteOptions *options,
               int64_t index);
// Delete those of an execution that has been started.
PJRT_Error *donors_delete(const PJRT_LoadedExecutable_Execute_Args *args);

// --- compilations.c
// Compile a program, or load what another rank has made of it.
PJRT_Error *compilations_compile(PJRT_Client_Compile_Args *args, int *is_reused);
// The bytes of an executable, which is `executable` or what that was loaded as.
PJRT_Error *compilations_serialize(const void *executable, PJRT_Executable_Serialize_Args *args);
void compilations_forget(const void *executable);
void compilations_fill(PJRT_Api *api);

// --- memories.c
// Learn in which memories an executable's results are, from the program that it is compiled from or
// its serialised form.
void memories_learn(const PJRT_LoadedExecutable *loaded, const char *bytes, size_t size);
// The same of another object that stands for it.
void memories_name(const PJRT_LoadedExecutable *loaded, const PJRT_Executable *executable);
void memories_forget(const void *executable);
// Move the results of an execution to where they belong.
PJRT_Error *memories_place(const PJRT_LoadedExecutable_Execute_Args *args);
void memories_fill(PJRT_Api *api);

// --- usage.c
// Count the memory of a buffer that the caller is given.
void usage_add(PJRT_Buffer *buffer);
// Count what an execution has taken of its arguments, and its results if the caller is given them.
void usage_executed(const PJRT_LoadedExecutable_Execute_Args *args, int has_results);
// Forget the buffers of a client that ends.
void usage_forget(const PJRT_Client *client);
// Add to those calls of `api` by which buffers come into being and end.
void usage_fill(PJRT_Api *api);

// --- devices.c
// The number that PJRT knows a device by.
int device_id(PJRT_Device *device);
void devices_learn(PJRT_Client *client);
void devices_forget(const PJRT_Client *client);
void devices_forget_executable(const PJRT_LoadedExecutable *executable);
// The client of one of this process's devices.
PJRT_Client *devices_client_of(const PJRT_Device *device);
// An error in a process that was forked after its parent had created a client.
PJRT_Error *devices_check_process(void);
void devices_fill(PJRT_Api *api);

// --- job.c
// Is given each message, and a descriptor that came with it, to be closed, or -1.
typedef void (*JobReader)(const char *line, const char *text, int descriptor);
// Join the job, once; NULL, or why that is not possible.
PJRT_Error *job_join(JobReader reader);
// Whether this process has a job to join.
int job_is_given(void);
// Whether all processes of this one's job are ranks that were started on this machine.
int job_is_local(void);
// JOB_NONE in a process that has not joined one; complete when all ranks have.
typedef enum { JOB_NONE, JOB_INCOMPLETE, JOB_COMPLETE, JOB_FAILED } JobState;
JobState job_state(void);
// Wait until all ranks of the job have joined it; an error when that will never be.
PJRT_Error *job_await(void);
// Whether this process has joined it, and not one that it was forked from.
int job_is_here(void);
// Send one message over a socket, with a descriptor if that is not -1; 0 when that is not possible.
int packet_send(int socket, int descriptor, const char *message, size_t size);
// The same, printf-like, to the job's executor; 0 when the job has ended.
int job_send(int descriptor, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Why the job has failed, to be freed; NULL as long as it has not.
char *job_failure(void);
PJRT_Error *job_error(void);  // the same
void job_fail(const char *why);

// --- gather.c
// Wait for the other devices of a program that a thread runs on one device of this process: whether
// they all bring the same executable, so that XLA's runtime lets them meet.
int gather_here(const PJRT_LoadedExecutable_AddressableDevices_Args *all,
                const PJRT_Device *device);
// Nobody comes any more to what has been left by all who came.
void gather_forget(void);

// --- meeting.c
// Wait for the other processes of this one's slice, as the creation of libtpu's client does.
PJRT_Error *meeting_await_all(void);
// Run a program that has devices of other processes too; `met` is 0, and nothing has happened, when
// it has none.
PJRT_Error *meeting_execute(PJRT_LoadedExecutable_Execute_Args *args, int *met);
void meeting_forget(const PJRT_LoadedExecutable *executable);
// Wait until nothing that the client executes is on its way. Returns 0 if functions of the host
// still run for it after some seconds: then it must not end.
int meeting_leave(const PJRT_Client *client);

// --- wire.c
// One field of a serialised protocol buffer; a varint's value is `integer`.
typedef struct {
  unsigned number, wire;
  uint64_t integer;
  unsigned char *value, *end;
} Field;
// Read a varint at `*at` and move `*at` behind it.
uint64_t read_varint(unsigned char **at, const unsigned char *end);
// Read the field at `*at` and move `*at` behind it; 0 at the end, and where no field can be read.
int next_field(unsigned char **at, unsigned char *end, Field *field);
// Where the last field of that number begins, and in `found_end` where it ends; NULL without one.
unsigned char *find_field(unsigned char *at, unsigned char *end, unsigned wanted,
                          unsigned char **found_end);

// --- options.c
// A CompileOptionsProto that compiles fast and is without the options of the TPU's own compiler, to
// be freed, and its size.
char *options_completed(const char *options, size_t *size);
// A copy of a CompileOptionsProto, to be freed, that is equal for equal options: without that, the
// entries of its maps have another order in each process.
char *options_sorted(const char *options, size_t size);
// Call `note` with the name of each option that a TPU's compiler heeds and the CPU's does not.
typedef void (*OptionNote)(const char *name, size_t size, const void *context);
void options_ignored(const char *options, size_t size, OptionNote note, const void *context);
// Return an error for what can't be ignored, since results or their shardings depend on it.
PJRT_Error *options_refused(const char *options, size_t size);

// --- refusals.c
// Return the error of a compilation, which may be NULL, with what the virtual TPU lacks and what to
// do instead, where the compiler's own message speaks of the CPU.
PJRT_Error *refusal_explained(PJRT_Error *error);

// --- protos.c
// Give the instructions of an HloModuleProto, or of one in an HloModuleProtoWithConfig, ids that
// fit in 32 bits, each in the bytes that it had.
void renumber_instructions(char *program, size_t size, int with_config);
// Where an HloModuleProto, or the one in an HloModuleProtoWithConfig, begins; NULL without one.
unsigned char *find_module(const char *program, size_t size, int with_config, unsigned char **end);
// Whether such a module says that it has donors.
int module_has_donors(const char *program, size_t size, int with_config);
// Its parameters whose buffers the program may take, to be freed.
int64_t *donated_by_module(const char *program, size_t size, int with_config, size_t *count);
// The same of a serialised CPU executable.
int64_t *donated_parameters(const char *executable, size_t size, size_t *count);
// Learn whether a serialised CPU executable exchanges anything between devices; 0 if it has no
// program that says so.
int executable_exchanges(const char *executable, size_t size, int *exchanges);
// What a custom call that is a Pallas kernel has as its target.
#define KERNEL_TARGET "tpu_custom_call"
// Whether an HloModuleProto, or the one in an HloModuleProtoWithConfig, calls a Pallas kernel.
int module_calls_kernel(const char *program, size_t size, int with_config);

// --- profiler.c
// Put a profiler before the extensions that `api` has.
void profiler_fill(PJRT_Api *api);

// --- extensions.c
// Put libtpu's other extensions before those that `api` has.
void extensions_fill(PJRT_Api *api);

// --- raw_buffers.c
// Put access to the bytes of buffers before the extensions that `api` has.
void raw_buffers_fill(PJRT_Api *api);

// --- transfers.c
// Put transfers between processes before the extensions that `api` has.
void transfers_fill(PJRT_Api *api);

// --- unseen.c
struct timespec;
// Execute in this process; an error in which that ends becomes an event.
PJRT_Error *unseen_execute(PJRT_LoadedExecutable_Execute_Args *args, const void *caller);
// Write an event for an error that ended what was submitted at `since`.
void unseen_error(const void *caller, const struct timespec *since, const char *text);
// The same of one that ended something now.
VIRTUAL_TPU_EXPORT void virtual_tpu_record_error(const char *text);
// A call that executes returns this error.
void unseen_returned(PJRT_Error *error, const void *caller);
// The user gets this event, and so the error that it may end in.
void unseen_asked(PJRT_Event *event, const void *caller);
// Wait until all that was executed in this process has ended.
void unseen_settle(void);
void unseen_fill(PJRT_Api *api);

// --- forward.c
// The table of the library at `path`, whose clients, compilations and executions are events; NULL,
// and in `wrong` why, when it can't be had.
const PJRT_Api *forward_api(const char *path, char *wrong, size_t size);

// --- python.c
// Find the process's Python, if it has one, without importing anything.
void python_find(void);
// Import the Python half, once; does nothing in a process without Python.
void python_start(void);
// Whether the process's Python can still be asked: not while the interpreter ends.
int python_runs(void);
// Whether this thread has a state of Python's; in a process without Python, any thread counts.
int python_is_thread(void);

// --- questions.c
// Each returns NULL, too, when Python does not answer soon: another thread may hold the GIL until
// this one has done its work.
// The Python stack of this thread, to be freed; NULL where there is none.
char *python_stack(void);
// Where each Python thread is, to be freed; NULL where there is none.
char *python_stacks(void);
// The file and line that this call comes from, to be freed; NULL in a thread that has no Python.
char *python_site(void);
// The newest StableHLO that a program may be written in, as "1.7.8", to be freed; "" for the
// backend's own.
char *python_stablehlo(void);

// --- stablehlo.c
// A copy of the backend's attributes in which its StableHLO is `newest`, if that is one: jaxlib
// before 0.4.36 writes a program in the newest version that the plugin reads, even if it does not
// know that version itself, and TorchTPU writes some operations in none as old as the backend's.
// NULL when memory is short.
PJRT_NamedValue *stablehlo_attributes(const PJRT_Plugin_Attributes_Args *backends,
                                      const char *newest);
// Whether a program is a portable artifact of a StableHLO that the backend does not know.
int stablehlo_is_newer(const PJRT_Program *program);

#endif  // XLA_HARNESS_VIRTUAL_TPU_PLUGIN_H_
