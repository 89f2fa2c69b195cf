//! Models of the Hub by names that people type: two have a name of the catalog, and others are
//! suggested where a name is unknown. Only repositories of supported families are here.

/// A name of the catalog that stands for a repository of the Hub, which has no other source.
pub struct HubName {
    /// Short name.
    pub name: &'static str,
    /// `org/name`.
    pub repo: &'static str,
}

/// The names: a chat model whose template has tools, and a reranker.
pub const HUB_NAMES: [HubName; 2] = [
    HubName {
        name: "qwen3-0.6b",
        repo: "Qwen/Qwen3-0.6B",
    },
    HubName {
        name: "ms-marco-minilm",
        repo: "cross-encoder/ms-marco-MiniLM-L6-v2",
    },
];

/// Beginnings of names, in lower case without marks, with repositories that may be meant.
const SUGGESTED: [(&str, &[&str]); 31] = [
    (
        "llama",
        &[
            "meta-llama/Llama-3.2-1B-Instruct",
            "unsloth/Llama-3.2-1B-Instruct",
        ],
    ),
    ("tinyllama", &["TinyLlama/TinyLlama-1.1B-Chat-v1.0"]),
    ("codellama", &["codellama/CodeLlama-7b-Instruct-hf"]),
    (
        "smollm",
        &[
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            "HuggingFaceTB/SmolLM3-3B",
        ],
    ),
    ("qwen", &["Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-0.5B-Instruct"]),
    ("qwen3embedding", &["Qwen/Qwen3-Embedding-0.6B"]),
    ("qwen3reranker", &["Qwen/Qwen3-Reranker-0.6B"]),
    ("gemma", &["google/gemma-3-270m-it", "google/gemma-3-1b-it"]),
    ("embeddinggemma", &["google/embeddinggemma-300m"]),
    ("mistral", &["mistralai/Mistral-7B-Instruct-v0.3"]),
    ("ministral", &["mistralai/Ministral-8B-Instruct-2410"]),
    ("mixtral", &["mistralai/Mixtral-8x7B-Instruct-v0.1"]),
    (
        "phi",
        &[
            "microsoft/Phi-4-mini-instruct",
            "microsoft/Phi-3.5-mini-instruct",
        ],
    ),
    ("deepseek", &["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"]),
    ("olmo", &["allenai/OLMo-2-0425-1B-Instruct"]),
    ("granite", &["ibm-granite/granite-3.3-2b-instruct"]),
    ("lfm", &["LiquidAI/LFM2-350M"]),
    ("exaone", &["LGAI-EXAONE/EXAONE-4.0-1.2B"]),
    ("starcoder", &["bigcode/starcoder2-3b"]),
    ("stablelm", &["stabilityai/stablelm-2-1_6b-chat"]),
    ("gpt2", &["openai-community/gpt2"]),
    ("distilgpt2", &["distilbert/distilgpt2"]),
    ("minilm", &["sentence-transformers/all-MiniLM-L6-v2"]),
    ("allmpnet", &["sentence-transformers/all-mpnet-base-v2"]),
    ("bge", &["BAAI/bge-small-en-v1.5", "BAAI/bge-m3"]),
    ("bgereranker", &["BAAI/bge-reranker-base"]),
    (
        "e5",
        &["intfloat/e5-small-v2", "intfloat/multilingual-e5-small"],
    ),
    (
        "gte",
        &["thenlper/gte-small", "Alibaba-NLP/gte-modernbert-base"],
    ),
    ("nomic", &["nomic-ai/nomic-embed-text-v1.5"]),
    ("mxbai", &["mixedbread-ai/mxbai-embed-large-v1"]),
    (
        "rerank",
        &[
            "cross-encoder/ms-marco-MiniLM-L6-v2",
            "BAAI/bge-reranker-base",
        ],
    ),
];

/// Repositories that a name such as `llama3`, `Qwen-2.5` or `llama3.2:1b` may mean, as `org/name`.
pub fn suggested(typed: &str) -> &'static [&'static str] {
    let plain: String = typed
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|c| c.to_ascii_lowercase())
        .collect();
    let fitting = SUGGESTED.iter().filter(|(stem, _)| plain.starts_with(stem));
    fitting
        .max_by_key(|(stem, _)| stem.len())
        .map_or(&[], |(_, repos)| repos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_well_written() {
        let suggested = SUGGESTED.iter().flat_map(|(_, repos)| repos.iter());
        for repo in suggested.chain(HUB_NAMES.iter().map(|name| &name.repo)) {
            let is_name = |part: &str| {
                let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                !part.is_empty() && part.chars().all(plain)
            };
            let parts: Vec<&str> = repo.split('/').collect();
            assert!(parts.len() == 2 && parts.into_iter().all(is_name), "{repo}");
        }
    }

    #[test]
    fn names_that_people_type_lead_to_repositories() {
        for (typed, repo) in [
            ("llama3", "meta-llama/Llama-3.2-1B-Instruct"),
            ("llama3.2:1b", "meta-llama/Llama-3.2-1B-Instruct"),
            ("qwen", "Qwen/Qwen3-0.6B"),
            ("Qwen-2.5", "Qwen/Qwen3-0.6B"),
            ("qwen3-reranker-4b", "Qwen/Qwen3-Reranker-0.6B"),
            ("bge-reranker", "BAAI/bge-reranker-base"),
            ("phi4", "microsoft/Phi-4-mini-instruct"),
        ] {
            assert_eq!(suggested(typed).first(), Some(&repo), "{typed}");
        }
        assert!(suggested("zzz").is_empty());
        assert!(suggested("").is_empty());
    }
}
