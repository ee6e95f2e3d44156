//! A real headless browser, for tests of HTML pages.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! let program = browser::Program::find()?;
//! let mut page = browser::Page::open(&program).await?;
//! page.go("https://127.0.0.1:10257/debug/reconcile").await?;
//! page.click("a").await?;
//! println!("{}", page.text("h1").await?);
//! # Ok(())
//! # }
//! ```
//!
//! The browser is Chromium's headless shell from the npm package `@sparticuz/chromium`: one archive with all its
//! requirements beyond the C library, of a pinned version with a known digest. It is fetched once into the user's cache
//! (`$BROWSER_TEST_FOLDER` names another folder); `$BROWSER_TEST_PROGRAM` names another Chromium or Chrome.

mod page;
mod pipe;
mod program;

pub use page::{Page, Request};
pub use program::Program;
