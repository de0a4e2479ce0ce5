#ifndef XLA_HARNESS_VIRTUAL_TPU_API_H_
#define XLA_HARNESS_VIRTUAL_TPU_API_H_

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

// --- backend.c
// The CPU plugin's own entries; NULL when it could not be loaded, and then every entry of ours
// returns an error that says why.
extern const PJRT_Api *backend;
// Return that error.
PJRT_Error *backend_missing(void);
// Load the backend if it is not loaded yet.
void backend_load(void);
// Have no backend, for the reason that `why` gives.
void backend_withhold(const char *why);
// Return the table of the library at `path`, which the variable `name` names. On failure returns
// NULL and writes why into `wrong`.
const PJRT_Api *api_of(const char *name, const char *path, char *wrong, size_t size);
// Whether the library at `path` is this plugin.
int is_own_library(const char *path);

// --- errors.c
// Make an error of the plugin, printf-like. It begins with "virtual TPU: ", or as the platform's
// title is; the backend's errors are a different kind of object.
PJRT_Error *error_new(PJRT_Error_Code code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// Make an error without that beginning, for a text that has one or is another library's.
PJRT_Error *error_again(PJRT_Error_Code code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// Return "virtual TPU: " and the text, for as long as the process lives. `text` is a literal.
const char *in_own_words(const char *text);
void error_destroy(PJRT_Error_Destroy_Args *args);
void error_message(PJRT_Error_Message_Args *args);
PJRT_Error *error_get_code(PJRT_Error_GetCode_Args *args);
PJRT_Error_Code error_code(const PJRT_Error *error);
// Return an error's text, to be freed, and free the error.
char *error_text(PJRT_Error *error);
// Free an error that changes nothing; NULL is allowed.
void error_drop(PJRT_Error *error);
// Destroy a buffer, without a word if that fails.
void buffer_drop(PJRT_Buffer *buffer);
// Destroy an event that nobody waits for.
void event_drop(PJRT_Event *event);
// Wait for an event, which is destroyed, and may be NULL: its error.
PJRT_Error *event_await(PJRT_Event *event);
// Set the size of a struct of PJRT's in its initializer.
#define SIZED(type) .struct_size = type##_STRUCT_SIZE
// Call an entry of the backend, in a function that returns an error.
#define TRY(entry, args)                          \
  do {                                            \
    PJRT_Error *error_ = backend->entry(&(args)); \
    if (error_ != NULL) return error_;            \
  } while (0)

// --- bridge.c
// Fill `api` with one trampoline for each entry that the backend has.
void bridge_fill(PJRT_Api *api);
// Put in front of every entry what an older caller needs, whose structs are smaller.
void bridge_front(PJRT_Api *api);
// The address that an older caller's call returns to, while its entry is at work; else NULL.
extern _Thread_local const void *older_caller;
// The address that the entry which this is written in returns to: it is the framework's.
#define CALLER (older_caller != NULL ? older_caller : __builtin_return_address(0))
// Copy options of an older caller into a struct of this plugin's size; an error if `from` can't be
// one.
PJRT_Error *widen_PJRT_ExecuteOptions(PJRT_ExecuteOptions *wide, const PJRT_ExecuteOptions *from);
// The trampoline of each entry, for the calls that add something of their own.
#define ENTRY(call, ...) PJRT_Error *bridge_##call(call##_Args *args);
#define VOID_ENTRY(call, ...)
#define STRUCT(name, ...)
#include "entries.inc"
#undef ENTRY
#undef VOID_ENTRY
#undef STRUCT

// --- memory.c
// Return memory for `count` elements of `size` bytes, filled with zeros, to be freed. Ends the
// process if there is none, with a message that names the purpose.
void *allocate(size_t count, size_t size, const char *purpose);
// Resize such memory, which may be NULL, in the same way; what is new in it is not initialized.
void *reallocate(void *memory, size_t count, size_t size, const char *purpose);

// --- lists.c
// The first member of an entry in a list of what is known of objects, each by its address.
typedef struct Known {
  struct Known *next;
  const void *object;
} Known;
// Return an object's entry; NULL if it has none.
void *known_find(Known *list, const void *object);
// Take an object's entry out of the list and return it; NULL if it has none.
void *known_take(Known **list, const void *object);
// Add an object's entry before the others and return it.
void *known_add(Known **list, const void *object, void *entry);

// --- description.c
// What launchers say of a job, in variables that each platform names in its own way.
typedef enum {
  LAUNCH_SLICES,             // how many slices the job has
  LAUNCH_SLICE,              // which of them this process is in
  LAUNCH_COORDINATOR,        // HOST:PORT where slices discover each other
  LAUNCH_NO_DISCOVERY,       // "true" if a client is not to wait for the other slices
  LAUNCH_PROCESS_BOUNDS,     // X,Y,Z: the processes of a slice
  LAUNCH_CHIPS_PER_PROCESS,  // X,Y,Z
  LAUNCH_PROCESS,            // which process of its slice this one is
  LAUNCH_VISIBLE_CHIPS,      // numbers of its chips, with commas between
  LAUNCH_ARGUMENTS,          // flags of the vendor's runtime
  LAUNCH_VARIABLES
} LaunchVariable;
// Return the platform's name for it.
const char *launch_name(LaunchVariable which);
// Return the variable's value; NULL if it is unset or empty.
const char *launch_value(LaunchVariable which);
// Return the value of a variable with this name in the same way.
const char *variable(const char *name);
// Return how sentences name the platform, as in "virtual TPU".
const char *platform_title(void);
// Return what sentences call the compiler of its vendor.
const char *platform_compiler(void);

enum { DEVICE_NUMBERS = 8, MOST_ATTRIBUTES = 8 };
typedef struct {
  char name[32], text[64];
  int64_t numbers[3];
} Attribute;
// What a device says of itself. It must stay where it is: its values point into it.
typedef struct {
  char text[128], representation[128];
  Attribute attributes[MOST_ATTRIBUTES];
  PJRT_NamedValue values[MOST_ATTRIBUTES];
  size_t count;
} DeviceDescription;
// Describe a device by its id, process, slice, x, y, z, core and its index among those of its
// process, as the platform describes its own.
void description_fill(DeviceDescription *described, const int *numbers);

// --- identity.c
typedef struct {
  int slices, devices;           // of the whole job, and of one slice
  int slices_here, first_slice;  // all from 0, or this process's own in a job of several
  int bounds[3];                 // of one slice's mesh of chips
  int grid[3];                   // of the processes that a slice's chips are divided among
  int process, processes;        // this one's index in the whole job, and how many there are
  int of_chip;                   // devices that one chip is
  int64_t memory;                // of one device, in bytes
  char name[32], kind[64], version[512];
} Identity;
extern Identity identity;
// Read the environment, and what a client is created with; NULL, or what is wrong with it.
PJRT_Error *identity_read(const PJRT_Client_Create_Args *args);
int identity_total(void);
// Return the process that a device belongs to, by its id, and whether that is this one.
int identity_process_of(int id);
int identity_is_own(int id);
// Return a device's number among those that this process sees, by its id, or -1.
int identity_local(int id);
void identity_fill(PJRT_Api *api);

// --- place.c
// Return whether clients, and not variables, say which place a process has in its job.
int place_is_given(void);
// Read that place into `identity`, and the numbers of this process's devices into `hardware`.
PJRT_Error *place_read(const PJRT_Client_Create_Args *args, int *hardware);
// Return which devices of its node this process takes, as "0:3,0:4" for two of node 0; "-" if its
// clients do not say.
const char *place_devices(void);

// --- numbers.c
// Read a decimal number from `low` to `high` at `*text` and move `*text` behind it; 0, and nothing
// is changed, when there is none. Only digits: neither a sign nor space.
int number_read(const char **text, int low, int high, int *number);
// Read a decimal number where `text`, which may be NULL, is nothing else; 0 when it is not.
int number_whole(const char *text, int low, int high, int *number);

// --- events.c
// Append an event. `caller` is an address in the library that called; `format` makes the JSON
// members that only this event has, with a leading comma, or is "".
void event_write(const char *event, const void *caller, const char *stack, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
// Append what became of a planted fault: it was given to the compiler, which has taken or refused
// it, and was executed.
void event_plant(const void *caller, const char *stage);
// Write a text as a JSON string, in quotes, cut to `size`, and return it; NULL is null.
const char *event_quote(char *out, size_t size, const char *text);
int event_wants_stack(const char *event);
// Return the FNV-1a hash of bytes, which go on from where `start` is the hash of those before them;
// FINGERPRINT is the hash of none.
#define FINGERPRINT 0xCBF29CE484222325u
uint64_t fingerprint(uint64_t start, const char *bytes, size_t size);
// Append what is known of a program that is compiled.
void event_compilation(const char *event, const void *caller, const PJRT_Program *program);

// --- wrong_answers.c
// Whether the plugin is to give this answer wrongly.
int wrong_answer_is(const char *name);
// The same, and it is written down that it does.
int answers_wrongly(const char *name);

// --- devices.c
// Return the number that PJRT knows a device by, of the device or its description.
int device_id(PJRT_Device *device);
int description_id(PJRT_DeviceDescription *description);
void devices_learn(PJRT_Client *client);
void devices_forget(const PJRT_Client *client);
void devices_forget_executable(const PJRT_LoadedExecutable *executable);
// Return the client of one of this process's devices.
PJRT_Client *devices_client_of(const PJRT_Device *device);
// Return an error in a process that was forked after its parent had created a client.
PJRT_Error *devices_check_process(void);
void devices_fill(PJRT_Api *api);

// --- profiler.c
// Put a profiler before the extensions that `api` has.
void profiler_fill(PJRT_Api *api);

// --- extensions.c
// Put libtpu's other extensions before those that `api` has.
void extensions_fill(PJRT_Api *api);

// --- python.c
// Find the process's Python, if it has one, without importing anything.
void python_find(void);
// Import the Python half, once; does nothing in a process without Python.
void python_start(void);
// Return whether the process's Python can still be called, which it can't while the interpreter
// ends.
int python_runs(void);
// Return whether this thread has a state of Python's; in a process without Python, any thread
// counts.
int python_is_thread(void);

// --- questions.c
// Each of these returns NULL, too, when Python does not answer soon: another thread may hold the
// GIL until this one has done its work.

// Return the Python stack of this thread, to be freed; NULL where there is none.
char *python_stack(void);
// Return where each Python thread is, to be freed; NULL where there is none.
char *python_stacks(void);
// Return the file and line that this call comes from, to be freed; NULL in a thread that has no
// Python.
char *python_site(void);
// Return the newest StableHLO that a program may be written in, as "1.7.8", to be freed; "" for the
// backend's own.
char *python_stablehlo(void);

// --- stablehlo.c
// Copy the backend's attributes, with `newest` as its StableHLO, if that is one: jaxlib before
// 0.4.36 writes a program in the newest version that the plugin reads, even if it does not know
// that version itself, and TorchTPU writes some operations in none as old as the backend's.
PJRT_NamedValue *stablehlo_attributes(const PJRT_Plugin_Attributes_Args *backends,
                                      const char *newest);
// Return whether a program is a portable artifact of a StableHLO that the backend does not know.
int stablehlo_is_newer(const PJRT_Program *program);

#endif  // XLA_HARNESS_VIRTUAL_TPU_API_H_
