//! Who asks on the bus, and what he may do.
//!
//! Whom the bus's own policy lets through may look. Root may do everything, and of others polkit decides whether they may act
//! (`org.putexd.Putexd1.manage-services`, and `org.putexd.Putexd1.confirm-dead` for that one). Where polkit cannot be asked, only
//! root may act.

use std::{collections::HashMap, error::Error, os::fd::OwnedFd, time::Duration};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::time::timeout;
use zbus::{
    Connection, fdo,
    message::{Flags, Header},
    names::BusName,
};
use zbus_polkit::policykit1::{AuthorityProxy, CheckAuthorizationFlags, Subject};

use crate::cluster::verb::Verb;

/// The action of whoever acts on services, or on the part that a host takes.
const MANAGE: &str = "org.putexd.Putexd1.manage-services";
/// The action of whoever says that a host is off. It is one of its own, because the word is believed without a proof: if it is
/// wrong, two hosts run a service at once.
const CONFIRM_DEAD: &str = "org.putexd.Putexd1.confirm-dead";

/// How long the bus may take to say who a client is.
const BUS_LIMIT: Duration = Duration::from_secs(2);
/// How long polkit may take where it asks nobody.
const POLKIT_LIMIT: Duration = Duration::from_secs(5);
/// How long polkit may take where a user has to type a password.
const PASSWORD_LIMIT: Duration = Duration::from_secs(120);
/// The file with the names of users.
const USERS: &str = "/etc/passwd";

/// Finds out who asks, and what he may do.
#[derive(Debug, Clone)]
pub struct Authority {
    /// A connection of its own: on that of the calls, an answer would wait behind them.
    bus: Connection,
}

impl Authority {
    pub fn new(bus: Connection) -> Self {
        Self { bus }
    }

    /// The number of the user who asks.
    pub async fn uid(&self, client: &str) -> fdo::Result<u32> {
        let ask = async {
            let bus = fdo::DBusProxy::new(&self.bus).await?;
            bus.get_connection_unix_user(BusName::try_from(client)?)
                .await
        };
        let uid = timeout(BUS_LIMIT, ask).await;
        let late = || Err(fdo::Error::TimedOut("it does not answer".to_owned()));
        uid.unwrap_or_else(|_| late()).map_err(|error| {
            fdo::Error::AccessDenied(format!("the bus does not say who asks: {error}"))
        })
    }

    /// Whether the client of this call may do this; if so, the name of its user.
    pub async fn act(&self, call: &Header<'_>, verb: &Verb) -> fdo::Result<String> {
        let client = call.sender().map_or("", |sender| sender.as_str());
        let uid = self.uid(client).await?;
        if uid != 0 {
            let action = if matches!(verb, Verb::ConfirmDead { .. }) {
                CONFIRM_DEAD
            } else {
                MANAGE
            };
            self.permit(call, action).await?;
        }
        // A client that has given up meanwhile has been told that nothing is known. So it is asked anew whether he is there still:
        // a putexd that stood still must not do later what nobody waits for.
        self.uid(client).await?;
        Ok(user_name(uid).await)
    }

    /// Asks polkit.
    async fn permit(&self, call: &Header<'_>, action: &str) -> fdo::Result<()> {
        let may_ask = call
            .primary()
            .flags()
            .contains(Flags::ALLOW_INTERACTIVE_AUTH);
        let (flags, limit) = if may_ask {
            (
                CheckAuthorizationFlags::ALLOW_USER_INTERACTION,
                PASSWORD_LIMIT,
            )
        } else {
            (CheckAuthorizationFlags::empty(), POLKIT_LIMIT)
        };
        let ask = async {
            let subject = Subject::new_for_message_header(call)?;
            let polkit = AuthorityProxy::new(&self.bus).await?;
            let details = HashMap::new();
            let answer = polkit.check_authorization(&subject, action, &details, flags, "");
            Ok::<_, Box<dyn Error + Send + Sync>>(answer.await?)
        };
        let answer = timeout(limit, ask).await;
        let answer = answer.unwrap_or_else(|_| Err("it does not answer".into()));
        match answer {
            Ok(answer) if answer.is_authorized => Ok(()),
            Ok(answer) if answer.is_challenge => Err(fdo::Error::InteractiveAuthorizationRequired(
                format!("be root, or let yourself be asked for a password ({action})"),
            )),
            Ok(_) => Err(fdo::Error::AccessDenied(format!(
                "be root: polkit does not permit it ({action})"
            ))),
            Err(error) => Err(fdo::Error::AccessDenied(format!(
                "be root, or install polkit, which cannot be asked ({error})"
            ))),
        }
    }
}

/// Whether the other end of a socket is there still.
pub fn is_there(socket: &OwnedFd) -> bool {
    let mut ends = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut ends, Some(&now)).is_ok_and(|ready| ready == 0)
}

/// The user's name as the host's own file has it, and `uid-N` where that has none: the name of a directory service is asked of
/// other programs, for which nobody waits here.
async fn user_name(uid: u32) -> String {
    if uid == 0 {
        return "root".to_owned();
    }
    let users = tokio::fs::read_to_string(USERS).await.unwrap_or_default();
    name_in(&users, uid).unwrap_or_else(|| format!("uid-{uid}"))
}

fn name_in(users: &str, uid: u32) -> Option<String> {
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid)).then(|| crate::types::shortened(name, 32))
    };
    users.lines().find_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_known_by_the_name_in_the_file() {
        let users = "root:x:0:0::/root:/bin/sh\nbad line\nanna:x:1000:1000::/home/anna:/bin/sh\n";
        assert_eq!(name_in(users, 1000).as_deref(), Some("anna"));
        assert_eq!(name_in(users, 1001), None);
    }
}
