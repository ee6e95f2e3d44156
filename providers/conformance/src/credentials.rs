//! Credentials in Secrets of the cluster: replaced while the provider runs.

use providers::{InstanceState, SecretData};

use crate::context::{Context, Stop, ensure};

pub(crate) async fn changed_secret_replaces_the_credentials(context: &Context<'_>) -> Result<(), Stop> {
    let (provider, instances) = (context.provider(), context.instances()?);
    let names = provider.secrets();
    if names.is_empty() {
        return Err(Stop::Skip("the provider reads no Secrets".into()));
    }
    let instance = context.instance("node").await?;
    let (name, data) = context.fixture.replace_credentials().await?;
    ensure!(names.contains(&name), "the provider reads the Secrets {names:?}, and not {name}");
    // While the former credentials are refused, nothing may be reported as gone.
    let states = instances.describe(std::slice::from_ref(&instance)).await;
    let is_acceptable = matches!(&states[..], [InstanceState::Unknown(_) | InstanceState::Running(_)]);
    ensure!(is_acceptable, "with credentials that are no longer valid the instance is {states:?}");
    // A Secret without its keys is refused with an error that names the Secret.
    let Err(refusal) = provider.receive_secret(&name, Some(SecretData::default())) else {
        return Err(Stop::Fail(format!("the Secret {name} without any key is accepted")));
    };
    ensure!(refusal.is_invalid(), "the Secret {name} without any key is {:?}, not Invalid: {refusal}", refusal.kind);
    ensure!(refusal.message.contains(&name.to_string()), "{:?} does not name the Secret {name}", refusal.message);
    provider.receive_secret(&name, Some(data))?;
    let states = instances.describe(&[instance]).await;
    let is_found = matches!(&states[..], [InstanceState::Running(_)]);
    ensure!(is_found, "with the new credentials the instance is {states:?}");
    Ok(())
}
