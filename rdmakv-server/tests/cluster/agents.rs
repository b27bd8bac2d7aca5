//! Agents repair, and servers leave.

use super::*;

#[test]
fn agents_make_epochs_whole_again() {
    let code = Policy::Code { data: 2, parity: 1 };
    let policies = [("two:", Policy::Copies(2)), ("three:", Policy::Copies(3)), ("code:", code)];
    let Some(mut cluster) = Cluster::start(3, &[], &policies) else { return };
    let (mut client, agents) = (cluster.client(), cluster.agents());
    let mut all = values("two:");
    all.extend(values("three:"));
    let coded = values("code:");
    store_all(&mut client, &all);
    store_all(&mut client, &coded);

    // Of the three servers one after the other fails and returns empty: no value has any of its first places at the end.
    for at in 0..3 {
        cluster.kill(at);
        cluster.is_repaired(2);
        assert!(!cluster.config().is_whole(), "values in fragments have two of three");
        compare(&mut client, &all);
        compare(&mut client, &coded);
        cluster.run(at, &[]);
        cluster.is_up(3);
        compare(&mut client, &all);
        compare(&mut client, &coded);
    }
    // With two copies of each value one server is enough, after another was replaced.
    cluster.kill(0);
    cluster.is_repaired(2);
    cluster.kill(1);
    soon("that one is left", || cluster.config().servers().len() == 1);
    compare(&mut client, &all);
    // Lost values keep no epoch from being whole.
    cluster.run(0, &[]);
    cluster.is_up(2);
    compare(&mut client, &all);
    for (key, value) in &coded {
        let is_small = value.as_ref().is_none_or(|value| value.len() < 4096);
        match client.get(key) {
            // A server that returned empty is the primary of some.
            Ok(None) => assert!(!is_small || value.is_none(), "{key} has copies"),
            Ok(found) => assert!(is_small && found.as_deref() == value.as_deref(), "{key} is another value"),
            Err(Error::Lost { found: 1, needed: 2, .. }) => assert!(!is_small, "{key} has copies"),
            Err(error) => panic!("{error}"),
        }
    }
    drop(agents);
}

#[test]
fn values_in_fragments_outlive_two_of_six_servers() {
    let policies = [("code:", Policy::Code { data: 4, parity: 2 })];
    let Some(mut cluster) = Cluster::start(6, &[], &policies) else { return };
    let (mut client, agents) = (cluster.client(), cluster.agents());
    let lengths = [0, 1, 4095, 4096, 4097, 65_535, 65_536, 65_537, 300_000];
    let value = |number: usize| {
        let length = lengths[number % lengths.len()];
        (number % 11 != 3).then(|| (0..length).map(|at| (at * 13 + at / 257 + number) as u8).collect())
    };
    let mut all: Vec<(String, Option<Vec<u8>>)> = (0..54).map(|n| (format!("code:{n}"), value(n))).collect();
    store_all(&mut client, &all);
    compare(&mut client, &all);

    // Two fail at once; then two others, after all pieces are there again.
    for pair in [[0, 1], [2, 3]] {
        pair.into_iter().for_each(|at| cluster.kill(at));
        soon("that both are removed", || cluster.config().servers().len() == 4);
        compare(&mut client, &all);
        // With four servers new values have two fragments of data.
        let (key, value) = (format!("code:{}", pair[0]), vec![pair[0] as u8; 50_000]);
        store_all(&mut client, &[(key.clone(), Some(value.clone()))]);
        all.iter_mut().filter(|(other, _)| *other == key).for_each(|(_, old)| *old = Some(value.clone()));
        pair.into_iter().for_each(|at| cluster.run(at, &[]));
        cluster.is_up(6);
        compare(&mut client, &all);
    }
    drop(agents);
    // Without repair a third loss is one too many for some values. None reads as another one.
    [0, 1, 2].into_iter().for_each(|at| cluster.kill(at));
    soon("that three are left", || cluster.config().servers().len() == 3);
    let mut lost = 0;
    for (key, value) in &all {
        match client.get(key) {
            Ok(found) => assert!(found.as_deref() == value.as_deref() || found.is_none(), "{key} is another value"),
            Err(Error::Lost { found, needed, .. }) => {
                assert!(found < needed && needed == 4 && value.is_some());
                lost += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(lost > 0);
}

#[test]
fn a_server_leaves_when_its_keys_are_elsewhere() {
    let Some(mut cluster) = Cluster::start(3, &[], &[("", Policy::Copies(2))]) else { return };
    let (mut client, _agents) = (cluster.client(), cluster.agents());
    let all = values("");
    store_all(&mut client, &all);
    let id = cluster.config().servers()[1].id;
    let at = cluster.at(id);
    let mut server = cluster.servers[at].take().unwrap();
    let config = cluster.config().draining(id).unwrap();
    let mut store = cluster.store();
    assert!(store.update(|_, _| Ok(Some(config.clone()))).is_ok());
    soon("that the server has left", || cluster.config().server(id).is_none());
    assert!(server.process.wait().unwrap().success());
    cluster.is_whole(2);
    compare(&mut client, &all);
}

#[test]
fn a_cluster_goes_on_without_its_last_server() {
    let Some(mut cluster) = Cluster::start(3, &[], &[("", Policy::Copies(2))]) else { return };
    let all = values("");
    {
        let (mut client, _agents) = (cluster.client(), cluster.agents());
        store_all(&mut client, &all);
    }
    // All end, and two of them return. They wait for the one that was left last.
    (0..3).for_each(|at| cluster.kill(at));
    let last = cluster.config().servers()[0].clone();
    let gone = cluster.at(last.id);
    let others: Vec<usize> = (0..3).filter(|&at| at != gone).collect();
    let only = |config: &Config| {
        let others = config.servers().iter().filter(|server| server.id != last.id).map(|server| server.id);
        others.collect::<Vec<_>>().into_iter().fold(config.clone(), |config, id| config.without_server(id).unwrap())
    };
    cluster.store().update(|_, config| Ok((config.servers().len() > 1).then(|| only(config)))).unwrap();
    others.iter().for_each(|&at| cluster.run(at, &[]));
    soon("that the others join", || cluster.config().servers().len() == 3);
    let (mut client, _agents) = (cluster.client(), cluster.agents());
    assert!(cluster.config().servers().iter().filter(|server| server.state == State::Up).count() == 1);
    cluster.store().update(|_, config| config.server(last.id).map(|_| config.forget(last.id)).transpose()).unwrap();
    cluster.is_up(2);
    for (key, _) in &all {
        assert!(client.get(key).unwrap().is_none(), "{key} is of the epoch that was forgotten");
    }
    store_all(&mut client, &all);
    compare(&mut client, &all);
    // The one that was forgotten is as a new one.
    cluster.run(gone, &[]);
    cluster.is_up(3);
    compare(&mut client, &all);
}
