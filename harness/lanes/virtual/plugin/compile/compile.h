#ifndef XLA_HARNESS_VIRTUAL_TPU_COMPILE_H_
#define XLA_HARNESS_VIRTUAL_TPU_COMPILE_H_

#include "api/api.h"

// --- programs.c
void programs_fill(PJRT_Api *api);
// Forget what this room knows of an executable that ends.
void program_forget(const PJRT_LoadedExecutable *executable);

// --- replacements.c
// Compile the program of `args`, or what the Python half replaces it with.
PJRT_Error *replaced_compile(PJRT_Client_Compile_Args *args, const void *caller);
// Compile in the place of a refused program one that takes and returns the same and is not to run:
// whoever only compiles goes on, and the other compiler decides. Returns `refused` if there is
// none.
PJRT_Error *stand_in_compile(PJRT_Client_Compile_Args *args, const void *caller,
                             PJRT_Error *refused);

// Return whether programs get planted faults, which few processes ask for.
int faults_are_planted(void);

// --- shared.c
// Compile the program of `args`, which was made of `submitted`, unless an equal one is there.
PJRT_Error *shared_compile(PJRT_Client_Compile_Args *args, const PJRT_Program *submitted,
                           const void *caller);
// Drop one user of an executable; returns whether it was the last.
int shared_release(const PJRT_LoadedExecutable *executable);
// Call `forget` with each executable of a client that ends, and forget them.
void shared_forget(const PJRT_Client *client, void (*forget)(const PJRT_LoadedExecutable *));
// Return the number that the event log has for an executable; 0 for one that was not compiled here.
unsigned shared_number(const PJRT_LoadedExecutable *executable);
// Note that an executable contains a planted fault.
void shared_set_planted(const PJRT_LoadedExecutable *executable);
// Return whether it contains one that has not been executed; it counts as executed from now on.
int shared_take_planted(const PJRT_LoadedExecutable *executable);
// Note why the program that an executable stands in for was refused, in a text that is taken over.
void shared_refuse(const PJRT_LoadedExecutable *executable, char *why);
// Return that text, as long as the executable lives, if it is a stand-in; NULL for any other.
const char *shared_refusal(const PJRT_LoadedExecutable *executable);
void shared_fill(PJRT_Api *api);

// --- optimized.c
int program_is_hlo(const PJRT_Program *program);
// Return whether an HLO program is an HloModuleProtoWithConfig.
int program_has_config(const PJRT_Program *program);
// Return what the backend's compiler made of a program; the caller frees the code.
PJRT_Error *program_optimized(PJRT_LoadedExecutable *loaded, PJRT_Program *out);
void optimized_fill(PJRT_Api *api);

// --- parameters.c
// Return an error that names the first argument that is not of its parameter's type and dimensions:
// the CPU's client compares sizes only, and would read one as the other.
PJRT_Error *parameters_check(const PJRT_LoadedExecutable_Execute_Args *args);
// Forget an executable that ends, or whose address a new one has got.
void parameters_forget(const PJRT_LoadedExecutable *executable);
// Return how many results an executable has on each device; 0 of one that is deleted.
size_t parameters_results(PJRT_LoadedExecutable *executable);

// --- compilations.c
// Compile a program, or load what another rank has made of it.
PJRT_Error *compilations_compile(PJRT_Client_Compile_Args *args, int *is_reused);
// Serialize an executable, which is `executable` or what that was loaded as.
PJRT_Error *compilations_serialize(const void *executable, PJRT_Executable_Serialize_Args *args);
void compilations_forget(const void *executable);
void compilations_fill(PJRT_Api *api);

// --- memories.c
// Learn in which memories an executable's results are, from the program that it is compiled from or
// its serialised form.
void memories_learn(PJRT_LoadedExecutable *loaded, const char *bytes, size_t size);
// Learn the memories of a loaded executable for the executable that PJRT describes it by.
void memories_name(const PJRT_LoadedExecutable *loaded, const PJRT_Executable *executable);
void memories_forget(const void *executable);
// Learn whether a memory is of that kind.
PJRT_Error *memory_is(PJRT_Memory *memory, const char *kind, int *is);
// Move the results of an execution to where they belong.
PJRT_Error *memories_place(const PJRT_LoadedExecutable_Execute_Args *args);
void memories_fill(PJRT_Api *api);

// --- layouts.c
// Learn whether a buffer's last dimension comes first in memory, as is usual.
PJRT_Error *buffer_is_row_major(PJRT_Buffer *buffer, int *row_major);
// Copy an array to the host in the layout that the caller names. The CPU's client passes over it:
// where it differs from the array's own, this waits for the copy.
PJRT_Error *layouts_to_host(PJRT_Buffer_ToHostBuffer_Args *args);
// Copy an array to another memory, with its layout if it can have that there.
PJRT_Error *layouts_copy(PJRT_Buffer_CopyToMemory_Args *args);
void layouts_fill(PJRT_Api *api);

// --- wire.c
// One field of a serialised protocol buffer; a varint's value is `integer`.
enum { VARINT, WIDE, BYTES, NARROW = 5 };  // how a field is encoded
typedef struct {
  unsigned number, wire;
  uint64_t integer;
  unsigned char *value, *end;
} Field;
// Read a varint at `*at` and move `*at` behind it.
uint64_t read_varint(unsigned char **at, const unsigned char *end);
// Read the field at `*at` and move `*at` behind it; 0 at the end, and where no field can be read.
int next_field(unsigned char **at, unsigned char *end, Field *field);
// Find the last field of that number and return where its value begins, and in `value_end` where it
// ends; NULL without one.
unsigned char *find_field(unsigned char *at, unsigned char *end, unsigned number,
                          unsigned char **value_end);
// Find the text that the Python half has noted in a program, or in what was made of it, between
// `name` and a semicolon; NULL without it.
const char *find_note(const char *bytes, size_t size, const char *name, size_t *length);

// --- options.c
// A CompileOptionsProto that compiles fast, has what the Python half has noted in the program and
// is without the options of the TPU's own compiler, to be freed, and its size. `with_emitters` is
// for programs that what compiles fastest gets wrong.
char *options_completed(const char *options, const PJRT_Program *program, int with_emitters,
                        size_t *size);
// Copy a CompileOptionsProto so that equal options are equal bytes, to be freed: the entries of its
// maps have another order in each process.
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
// Find an HloModuleProto, or the one in an HloModuleProtoWithConfig, and return where it begins;
// NULL without one.
unsigned char *find_module(const char *program, size_t size, int with_config, unsigned char **end);
// Return the parameters whose buffers the program takes for its results, to be freed.
int64_t *donated_by_module(const char *program, size_t size, int with_config, size_t *count);
// The same of a serialised CPU executable.
int64_t *donated_parameters(const char *executable, size_t size, size_t *count);
// Learn whether a serialised CPU executable exchanges anything between devices; 0 if it has no
// program that says so.
int executable_exchanges(const char *executable, size_t size, int *exchanges);
// What a custom call that is a Pallas kernel has as its target.
#define KERNEL_TARGET "tpu_custom_call"
// Return whether an HloModuleProto, or the one in an HloModuleProtoWithConfig, calls a Pallas
// kernel.
int module_calls_kernel(const char *program, size_t size, int with_config);
// Return whether it has floating-point numbers of 8 bits or fewer.
int module_has_small_floats(const char *program, size_t size, int with_config);

#endif  // XLA_HARNESS_VIRTUAL_TPU_COMPILE_H_
