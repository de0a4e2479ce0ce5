// Programs in a StableHLO that the backend does not know, of which HLO is made.
#include <string.h>

#include "caller.h"

// The head of a portable artifact whose producer is StableHLO of that version, and no more of it.
#define BLANKS "                                                                "
#define ARTIFACT(version) "ML\xefR\x0dStableHLO_v" version BLANKS

void virtual_tpu_set_rewriter(int (*function)(const char *, size_t, const char *, size_t, void *));

static int is_newer(const char *code) {
  const PJRT_Program program = {.code = (char *)code, .code_size = strlen(code)};
  return stablehlo_is_newer(&program);
}

TEST(a_newer_stablehlo_is_known_by_the_artifacts_head) {
  destroy_client(create_client());  // there is a backend from the first client on
  EXPECT(is_newer(ARTIFACT("99.0.0")));
  EXPECT(is_newer(ARTIFACT("1.99.0")));
  EXPECT(!is_newer(ARTIFACT("0.99.99")));
  EXPECT(!is_newer(ARTIFACT("1.1.99")));
  EXPECT(!is_newer(ARTIFACT("next")));
  EXPECT(!is_newer("ML\xefR\x0dStableHLO_v99.0.0"));  // cut off
  EXPECT(!is_newer(DOUBLE));
}

// The start of what programs.c has for an answer.
typedef struct {
  const char *format, *code, *error, *names, *modes;
  size_t code_size;
} Answer;
static int asked;

// An answer that names nothing it has replaced.
static int as_double(const char *format, size_t format_size, const char *code, size_t code_size,
                     void *out) {
  (void)format, (void)format_size, (void)code, (void)code_size;
  ++asked;
  *(Answer *)out = (Answer){"mlir", DOUBLE, NULL, "", "", sizeof DOUBLE - 1};
  return 0;
}

TEST(a_program_in_a_newer_stablehlo_is_compiled_as_what_the_python_half_makes_of_it) {
  PJRT_Client *client = create_client();
  virtual_tpu_set_rewriter(as_double);
  PJRT_LoadedExecutable *executable = compile_program(client, ARTIFACT("1.99.0"));
  EXPECT(asked == 1);
  const float in[] = {1, 2, 3, 4};
  float out[4];
  run(client, executable, PJRT_ExecuteOptions_STRUCT_SIZE, in, out);
  EXPECT(out[3] == 8);
  destroy_executable(executable);
  text_of(try_compile(client, ARTIFACT("1.1.0"), &executable));  // the compiler's own error
  EXPECT(asked == 1);
  destroy_client(client);
}
