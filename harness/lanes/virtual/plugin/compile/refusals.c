#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"

typedef struct {
  const char *text;      // in the compiler's message
  const char *sentence;  // for whoever submitted the program
  int instead;           // of the message, which speaks of something else
} Refusal;

// A sentence is a format of the platform's title, its vendor's compiler, that one's lane, and which
// compiler calls no functions while it partitions.
//
// libtpu 0.0.23 to 0.0.42 have no extension for functions that partition, and JAX's own tests of
// both leave a TPU out:
// https://github.com/jax-ml/jax/blob/jax-v0.10.2/tests/debugging_primitives_test.py
static const Refusal KNOWN[] = {
    {"\"InspectSharding\"",
     "jax.debug.inspect_array_sharding is called by the compiler while it partitions, "
     "which %4$s. Ask a result for its .sharding, or use lane cpu",
     1},
    {"CustomSPMDPartitioning",
     "custom_partitioning has the compiler call functions of this process, which "
     "%4$s. Say how to divide it by jax.shard_map, or use lane cpu",
     1},
    {"xla_harness.newer_stablehlo",
     "JAX can't write the program in the StableHLO that XLA's CPU compiler reads", 1},
    {"No such compile option",
     "XLA's CPU compiler has no such option, and it is not named as an option of "
     "%2$s is. Lane %3$s asks %2$s; leave it out here",
     0},
};

// What the CPU's compiler, and the functions that it calls, say of themselves.
static const char *const OF_CPU[] = {"Host", "CPU"};
static const Refusal LACKING = {
    .sentence =
        "XLA's CPU compiler, which compiles for it, can't do this; a %1$s may. "
        "Lane %3$s asks %2$s's compiler"};

static const Refusal *find_refusal(PJRT_Error_Code code, const char *text) {
  for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; ++i) {
    if (strstr(text, KNOWN[i].text) != NULL) return &KNOWN[i];
  }
  if (strstr(text, in_own_words("")) != NULL) return NULL;
  if (code == PJRT_Error_Code_UNIMPLEMENTED) return &LACKING;
  for (size_t i = 0; i < sizeof OF_CPU / sizeof *OF_CPU; ++i) {
    if (strstr(text, OF_CPU[i]) != NULL) return &LACKING;
  }
  return NULL;
}

static void write_sentence(char *sentence, size_t size, const Refusal *refusal) {
  const char *compiler = platform_compiler(), *lane = variable("VIRTUAL_TPU_COMPILING_LANE");
  const int is_libtpu = strcmp(compiler, "libtpu") == 0;
  snprintf(sentence, size, refusal->sentence, platform_title(), compiler,
           lane != NULL ? lane : "tpu-aot",
           is_libtpu ? "neither this one nor libtpu can do" : "this one can't do");
}

PJRT_Error *refusal_explained(PJRT_Error *error) {
  if (error == NULL) return NULL;
  const PJRT_Error_Code code = error_code(error);
  char *text = error_text(error);
  const Refusal *known = find_refusal(code, text);
  const int is_kept = known == NULL || !known->instead;
  char sentence[512] = "";
  if (known != NULL) write_sentence(sentence, sizeof sentence, known);
  error = error_again(code, "%s%s%s%s", is_kept ? text : "", known != NULL && is_kept ? "\n" : "",
                      known == NULL ? "" : in_own_words(""), sentence);
  free(text);
  return error;
}
