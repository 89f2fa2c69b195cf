/* The C interface of Thane: models on this machine's CPU.
 *
 * Texts are UTF-8 and end with a zero byte. Every function that can fail returns a thane_status and, where `error` is not
 * NULL and the status is not THANE_OK, sets `*error` to a message that the caller frees with thane_free. A model belongs to
 * the process that opened it, and computes one call at a time: calls of several threads wait for each other. Only
 * thane_generator_cancel is meant for another thread while a call runs. Nothing here prints, ends the process or keeps a
 * pointer of the caller after it has returned. */

#ifndef THANE_H
#define THANE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with every change that a compiled caller would notice. */
#define THANE_ABI 1

typedef enum {
    THANE_OK = 0,
    /* The message says what was expected, what was found, and what to do. */
    THANE_ERROR = 1,
    /* The answer was ended by thane_generator_cancel or by the callback. */
    THANE_CANCELLED = 2,
    /* A fault of Thane itself. The model must be closed. */
    THANE_PANIC = 3
} thane_status;

typedef struct thane_embedder thane_embedder;
typedef struct thane_reranker thane_reranker;
typedef struct thane_generator thane_generator;

/* How a model is opened. All zeros is the default of each. */
typedef struct {
    /* "fast" (NULL), "f32", "int8" or "ane". */
    const char *numerics;
    /* Folder of downloaded models; NULL for the user's own. */
    const char *cache;
    /* Threads; 0 for as many as there are cores. */
    uint32_t threads;
    /* Tokens of the KV cache of a generator, most tokens of a text otherwise; 0 for what the model has. */
    uint32_t tokens;
    /* Limit of what the model takes beside its files, in bytes; 0 for none. */
    uint64_t memory;
} thane_options;

/* Gets a piece of text, which is `len` bytes long and ends with a zero byte. Returns 0 to end the answer. */
typedef int (*thane_on_text)(const char *text, size_t len, void *user);

/* The version, such as "0.1.0"; not to be freed. */
const char *thane_version(void);
/* THANE_ABI of the library: compare it with that of the header. */
uint32_t thane_abi(void);
/* Frees a text of the library; NULL is allowed. */
void thane_free(char *text);

/* Opens an embedding model: a path, a package, "hf:org/name" or a name of the catalog. */
thane_status thane_embedder_open(const char *model, const thane_options *options, thane_embedder **out, char **error);
void thane_embedder_close(thane_embedder *model);
/* Elements of a vector. */
size_t thane_embedder_dimension(const thane_embedder *model);
/* Writes a vector for each of `n` texts to `out`, row by row: n times the dimension. `prompt_name` names a prompt of the model;
 * NULL for its default, "" for none. Texts that are too long are cut. */
thane_status thane_embedder_embed(thane_embedder *model, const char *const *texts, size_t n, const char *prompt_name, float *out,
                                  size_t out_len, char **error);

thane_status thane_reranker_open(const char *model, const thane_options *options, thane_reranker **out, char **error);
void thane_reranker_close(thane_reranker *model);
/* Writes the score of each text for the query to `scores`, in the order of the texts. */
thane_status thane_reranker_score(thane_reranker *model, const char *query, const char *const *texts, size_t n, float *scores,
                                  char **error);

thane_status thane_generator_open(const char *model, const thane_options *options, thane_generator **out, char **error);
void thane_generator_close(thane_generator *model);
/* Answers messages, a JSON array of objects with "role" and "content". `options` is a JSON object or NULL: max_tokens,
 * temperature, top_k, top_p, min_p, repetition_penalty, seed, stop, tools, schema, regex, lark. `on_text` may be NULL. `answer`
 * gets a JSON object with text, tokens, finish_reason and prompt_tokens, to be freed; also with THANE_CANCELLED. */
thane_status thane_generator_answer(thane_generator *model, const char *messages, const char *options, thane_on_text on_text,
                                    void *user, char **answer, char **error);
/* The same for a text that is continued without the chat template. */
thane_status thane_generator_complete(thane_generator *model, const char *prompt, const char *options, thane_on_text on_text,
                                      void *user, char **answer, char **error);
/* Ends the answer that runs, from any thread; without one, nothing happens. */
void thane_generator_cancel(const thane_generator *model);

#ifdef __cplusplus
}
#endif

#endif
