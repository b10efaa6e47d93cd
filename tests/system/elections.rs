//! NATS on the hosts: the time that it is without a leader decides how long a lease must last.
//!
//! These tests speak JetStream's own JSON, so that they test the servers and not putexd's store.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    command::{now, since, wait_for, wait_until},
    lockstore::Lockstore,
    on_hosts::OnHosts,
    server::ADDRESS,
};

/// Upper limit for an election, longer than any that was seen.
const LIMIT: Duration = Duration::from_secs(60);

/// Sends one request in the network of the cluster, and returns its answer. `None` when there is no answer in half a
/// second, or when it is an error.
fn request(cluster: &Cluster, servers: &[String], subject: &str, payload: &Value) -> Option<Value> {
    let limit = Duration::from_millis(500);
    cluster.ask_on_the_switch(async || {
        let client = tokio::time::timeout(limit, async_nats::connect(servers))
            .await
            .ok()?
            .ok()?;
        let answer = client.request(subject.to_owned(), payload.to_string().into());
        let answer = tokio::time::timeout(limit, answer).await.ok()?.ok()?;
        let answer: Value = serde_json::from_slice(&answer.payload).ok()?;
        answer.get("error").is_none().then_some(answer)
    })
}

fn create_bucket(cluster: &Cluster, servers: &[String], replicas: usize) -> Option<Value> {
    let config = json!({
        "name": "KV_test", "subjects": ["$KV.test.>"], "num_replicas": replicas, "storage": "file",
        "max_msgs_per_subject": 1, "discard": "new", "allow_rollup_hdrs": true, "deny_delete": true,
    });
    request(cluster, servers, "$JS.API.STREAM.CREATE.KV_test", &config)
}

fn put(cluster: &Cluster, servers: &[String]) -> Option<u64> {
    request(cluster, servers, "$KV.test.key", &json!("value"))?
        .get("seq")?
        .as_u64()
}

fn stream_leader(cluster: &Cluster, servers: &[String]) -> Option<String> {
    let info = request(cluster, servers, "$JS.API.STREAM.INFO.KV_test", &json!({}))?;
    Some(info.pointer("/cluster/leader")?.as_str()?.to_owned())
}

#[test]
fn nats_cluster_elects_a_leader_again() {
    let Some(cluster) = Cluster::boot("elect", 3) else {
        return;
    };
    let servers = OnHosts::Nats.urls(&cluster);
    let began = now();
    OnHosts::Nats.start(&cluster);
    println!(
        "first meta leader {:?} after the start of the servers",
        since(began)
    );
    wait_for(LIMIT, "a bucket can be made", || {
        create_bucket(&cluster, &servers, 3)
    });
    wait_for(LIMIT, "the bucket takes a value", || {
        put(&cluster, &servers)
    });
    println!("bucket writable after {:?}", since(began));

    let leader = wait_for(LIMIT, "the stream has a leader", || {
        stream_leader(&cluster, &servers)
    });
    let host = cluster
        .hosts
        .iter()
        .find(|host| host.name == leader)
        .expect("the leader is one of the hosts");
    let led_meta = OnHosts::Nats
        .leader_seen_by(&cluster, host)
        .is_some_and(|seen| seen.itself);
    let lost = host.power_off_hard();
    let rest: Vec<String> = servers
        .iter()
        .filter(|server| !server.contains(&host.address))
        .cloned()
        .collect();
    wait_for(LIMIT, "the bucket takes a value again", || {
        put(&cluster, &rest)
    });
    let again = since(lost);
    println!(
        "bucket writable again {again:?} after its leader's power loss (which led the meta group: {led_meta})"
    );
    assert_ne!(
        OnHosts::Nats.wait_for_leader(&cluster).name,
        leader,
        "a host that is off leads nothing"
    );
    wait_until(LIMIT, "another host leads the stream", || {
        stream_leader(&cluster, &rest).is_some_and(|other| other != leader)
    });

    host.boot();
    let killed = OnHosts::Nats.wait_for_leader(&cluster);
    let began = now();
    OnHosts::kill(killed);
    wait_until(LIMIT, "the killed server is back", || {
        OnHosts::Nats.leader_seen_by(&cluster, killed).is_some()
    });
    println!(
        "the killed server of the meta leader knows a leader after {:?}",
        since(began)
    );

    OnHosts::down(&cluster);
    let began = now();
    OnHosts::Nats.up(&cluster);
    println!("meta leader {:?} after all servers were down", since(began));
    wait_for(
        LIMIT,
        "the bucket takes a value after all servers were down",
        || put(&cluster, &servers),
    );
    println!(
        "bucket writable {:?} after all servers were down",
        since(began)
    );
}

#[test]
fn a_nats_server_beside_the_hosts_outlives_them() {
    let Some(cluster) = Cluster::boot("outside", 1) else {
        return;
    };
    let outside = cluster.server_beside(Lockstore::Nats);
    let servers = [format!("nats://{ADDRESS}:{}", Lockstore::NATS_PORT)];
    create_bucket(&cluster, &servers, 1).expect("the server makes a bucket");
    assert_eq!(put(&cluster, &servers), Some(1));
    cluster.hosts[0].power_off_hard();
    assert_eq!(put(&cluster, &servers), Some(2));
    outside.kill();
    assert_eq!(put(&cluster, &servers), None);
    outside.up();
    assert_eq!(
        put(&cluster, &servers),
        Some(3),
        "a restarted server has what it stored"
    );
    outside.wipe();
    outside.up();
    create_bucket(&cluster, &servers, 1).expect("the server makes a bucket");
    assert_eq!(
        put(&cluster, &servers),
        Some(1),
        "a wiped server begins anew"
    );
}
