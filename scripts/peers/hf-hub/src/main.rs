//! Fetches every file of `org/name` from HF_ENDPOINT into HF_HOME, and prints each path in the
//! repository with the path of the file.

use hf_hub::api::sync::{ApiBuilder, ApiError};

fn main() -> Result<(), ApiError> {
    let api = ApiBuilder::from_env().with_progress(false).build()?;
    let repo = api.model("org/name".to_owned());
    for file in repo.info()?.siblings {
        println!("{}\t{}", file.rfilename, repo.get(&file.rfilename)?.display());
    }
    Ok(())
}
