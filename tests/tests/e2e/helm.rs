//! The Helm chart: what each value makes of it, and that the manifests for kubectl are what it renders.

use kevtmon_tests::daemon_set::{CAPABILITIES, PRIVILEGED};
use kevtmon_tests::delivered::{document, list, parse, path, string, text, yaml};
use kevtmon_tests::helm::{self, CHART, NAMESPACE, of_kind, values};
use kevtmon_tests::process::Finished;
use serde_json::{Value, json};

const RULES: &str = "deploy/prometheus/kevtmon.rules.yaml";

/// What Helm finds wrong with values, before it renders anything.
fn complaints(values: &Value) -> Vec<String> {
    let schema: Value =
        serde_json::from_str(&text(&format!("{CHART}/values.schema.json"))).expect("a schema");
    let schema = jsonschema::draft7::new(&schema).expect("a schema");
    schema.iter_errors(values).map(|error| error.to_string()).collect()
}

/// Renders with these values instead of the chart's own, which have to be right.
fn render(changed: &Value) -> Finished {
    assert_eq!(complaints(&values(changed)), Vec::<String>::new());
    helm::render(changed)
}

fn rendered(changed: &Value) -> Vec<Value> {
    parse(&render(changed).succeeded("rendering").stdout, CHART)
}

fn kinds(objects: &[Value]) -> Vec<&str> {
    objects.iter().map(|object| string(object, "kind")).collect()
}

/// The DaemonSet of a rendering.
fn set(objects: &[Value]) -> &Value {
    of_kind(objects, "DaemonSet").expect("a DaemonSet")
}

/// The only endpoint of its PodMonitor.
fn endpoint(objects: &[Value]) -> &Value {
    let monitor = of_kind(objects, "PodMonitor").expect("a PodMonitor");
    let [endpoint] = list(&monitor["spec"], "podMetricsEndpoints") else { panic!("{monitor}") };
    endpoint
}

/// Adds to a list of a DaemonSet's only container.
fn add(set: &mut Value, member: &str, item: Value) {
    let list = &mut set["spec"]["template"]["spec"]["containers"][0][member];
    list.as_array_mut().unwrap_or_else(|| panic!("{member} is a list")).push(item);
}

/// What `podMonitor` makes of a DaemonSet.
fn listens_at(set: &mut Value, address: &str) {
    add(set, "args", format!("--listen={address}:19809").into());
    let field = json!({"fieldRef": {"fieldPath": "status.podIP"}});
    add(set, "env", json!({"name": "KEVTMON_POD_IP", "valueFrom": field}));
    set["spec"]["template"]["spec"]["containers"][0]["ports"] =
        json!([{"name": "metrics", "containerPort": 19809, "hostPort": 19809}]);
}

/// What a file has to be that is made of others. `KEVTMON_BLESS=1` writes it again.
fn is_made_of(file: &str, expected: &str) {
    if std::env::var_os("KEVTMON_BLESS").is_some() {
        std::fs::write(path(file), expected).expect("it can be written");
    }
    assert!(text(file) == expected, "{file} is written again with KEVTMON_BLESS=1; review the diff");
}

#[test]
fn the_manifests_for_kubectl_are_what_the_chart_renders() {
    for (manifest, privileged, with) in [
        (CAPABILITIES, false, "createNamespace=true"),
        (PRIVILEGED, true, "privileged=true and createNamespace=true"),
    ] {
        let ran = render(&json!({"privileged": privileged, "createNamespace": true})).succeeded("rendering");
        let head = format!(
            "# Rendered from the chart in {CHART} with {with}. Change it there, and write this again:\n\
             # KEVTMON_BLESS=1 cargo test -p kevtmon-tests --test e2e helm\n"
        );
        is_made_of(manifest, &(head + &ran.stdout));
        // In this order kubectl makes them: nothing is made in a namespace that is not there.
        let objects = yaml(manifest);
        assert_eq!(kinds(&objects), ["Namespace", "ServiceAccount", "ConfigMap", "DaemonSet"]);
        let namespace = &objects[0]["metadata"];
        assert_eq!(namespace["name"], NAMESPACE);
        assert_eq!(namespace["labels"]["pod-security.kubernetes.io/enforce"], "privileged");
        for object in &objects[1..] {
            assert_eq!(object["metadata"]["namespace"], NAMESPACE, "{object}");
        }
        assert_eq!(objects[1]["automountServiceAccountToken"], false);
        // Without the sockets of the runtimes, of which one makes whoever writes to it root.
        assert!(string(&objects[2]["data"], "kevtmon.toml").contains("\nsockets = \"none\"\n"));
    }
}

#[test]
fn the_forms_differ_in_nothing_but_privileges() {
    let mut sets = [false, true].map(|privileged| set(&rendered(&json!({"privileged": privileged}))).clone());
    let mut contexts =
        sets.iter_mut().map(|set| set["spec"]["template"]["spec"]["containers"][0]["securityContext"].take());
    let (least, most) = (contexts.next().expect("two"), contexts.next().expect("two"));
    drop(contexts);
    assert_eq!(sets[0], sets[1]);
    assert_eq!(most, json!({"runAsUser": 0, "readOnlyRootFilesystem": true, "privileged": true}));
    let names = ["SYS_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH", "NET_ADMIN", "NET_BROADCAST"];
    let expected = json!({
        "runAsUser": 0,
        "readOnlyRootFilesystem": true,
        "privileged": false,
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"], "add": names},
    });
    assert_eq!(least, expected);
}

#[test]
fn by_itself_it_makes_what_helm_can_install() {
    let objects = rendered(&json!({}));
    assert_eq!(kinds(&objects), ["ServiceAccount", "ConfigMap", "DaemonSet"]);
    let least = yaml(CAPABILITIES);
    assert_eq!(objects[..], least[1..], "the manifests have the namespace as well");
}

#[test]
fn runtime_sockets_are_an_argument_and_no_mount() {
    let objects = rendered(&json!({"runtimeSockets": true}));
    let mut expected = set(&rendered(&json!({}))).clone();
    add(&mut expected, "args", "--runtime=auto".into());
    assert_eq!(set(&objects), &expected);
}

#[test]
fn kubernetes_events_take_a_token_and_two_verbs_and_nothing_else() {
    let (plain, objects) = (rendered(&json!({})), rendered(&json!({"kubernetesEvents": true})));
    let expected = ["ServiceAccount", "ConfigMap", "ClusterRole", "ClusterRoleBinding", "DaemonSet"];
    assert_eq!(kinds(&objects), expected);
    assert_eq!(of_kind(&objects, "ServiceAccount"), of_kind(&plain, "ServiceAccount"));
    let role = of_kind(&objects, "ClusterRole").expect("a ClusterRole");
    let rule = json!({"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]});
    assert_eq!(role["rules"], json!([rule]));
    let binding = of_kind(&objects, "ClusterRoleBinding").expect("a ClusterRoleBinding");
    let account = json!({"kind": "ServiceAccount", "name": "kevtmon", "namespace": NAMESPACE});
    assert_eq!(binding["subjects"], json!([account]));
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let mut pods = [&plain, &objects].map(|objects| set(objects)["spec"]["template"]["spec"].clone());
    let mounts = pods.each_mut().map(|pod| pod["automountServiceAccountToken"].take());
    assert_eq!(mounts, [json!(false), json!(true)]);
    assert_eq!(pods[0], pods[1]);
    let toml = |objects: &[Value]| {
        let map = of_kind(objects, "ConfigMap").expect("a ConfigMap");
        string(&map["data"], "kevtmon.toml").to_owned()
    };
    assert_eq!(toml(&objects), format!("{}\n[kubernetes]\nevents = true\n", toml(&plain)));
}

#[test]
fn an_admission_policy_ties_the_events_of_each_agent_to_its_node() {
    let plain = rendered(&json!({"kubernetesEvents": true}));
    let objects = rendered(&json!({"kubernetesEvents": true, "admissionPolicy": true}));
    assert_eq!(objects[..plain.len()], plain[..]);
    assert_eq!(objects.len(), plain.len() + 2);
    let policy = of_kind(&objects, "ValidatingAdmissionPolicy").expect("a policy");
    let binding = of_kind(&objects, "ValidatingAdmissionPolicyBinding").expect("its binding");
    let denies = json!({"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]});
    assert_eq!(binding["spec"], denies);
    let [rule] = list(&policy["spec"]["matchConstraints"], "resourceRules") else { panic!("{policy}") };
    let allowed = &of_kind(&objects, "ClusterRole").expect("a ClusterRole")["rules"][0];
    for member in ["apiGroups", "resources"] {
        assert_eq!(rule[member], allowed[member], "all that the account may write");
    }
    assert_eq!(rule["operations"], json!(["CREATE", "UPDATE"]));
    let user = format!("request.userInfo.username == 'system:serviceaccount:{NAMESPACE}:kevtmon'");
    assert_eq!(policy["spec"]["matchConditions"], json!([{"name": "by-an-agent", "expression": user}]));
    let ran = render(&json!({"admissionPolicy": true}));
    let words = "admissionPolicy takes kubernetesEvents";
    assert!(!ran.status.success() && ran.stderr.contains(words), "{}", ran.stderr);
}

#[test]
fn a_pod_monitor_finds_the_metrics_at_the_address_of_the_node_and_hides_no_pod() {
    for (ipv6, address) in [(false, "$(KEVTMON_POD_IP)"), (true, "[$(KEVTMON_POD_IP)]")] {
        let objects = rendered(&json!({"podMonitor": true, "ipv6": ipv6}));
        let mut expected = set(&rendered(&json!({}))).clone();
        listens_at(&mut expected, address);
        assert_eq!(set(&objects), &expected);
    }
    let objects = rendered(&json!({"podMonitor": true}));
    let monitor = of_kind(&objects, "PodMonitor").expect("a PodMonitor");
    assert_eq!(monitor["metadata"]["namespace"], NAMESPACE);
    assert_eq!(monitor["spec"]["jobLabel"], "app.kubernetes.io/name");
    let labels = &set(&objects)["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/name"], "kevtmon");
    assert_eq!(monitor["spec"]["selector"], json!({"matchLabels": {"app.kubernetes.io/name": "kevtmon"}}));
    // Else an incident without a pod would have kevtmon's own.
    let expected = json!({
        "port": "metrics",
        "interval": "30s",
        "honorLabels": true,
        "relabelings": [
            {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"},
            {"action": "labeldrop", "regex": "namespace|pod|container|endpoint"},
        ],
    });
    assert_eq!(endpoint(&objects), &expected);
}

#[test]
fn a_web_configuration_is_mounted_probed_by_tls_and_read_with_a_password() {
    let web = json!({"secret": "kevtmon-web", "clientSecret": "kevtmon-web-client"});
    let objects = rendered(&json!({"podMonitor": true, "webConfig": web}));
    let plain = rendered(&json!({"podMonitor": true}));
    let mut expected = set(&plain).clone();
    add(&mut expected, "args", "--web.config.file=/etc/kevtmon-web/web.yml".into());
    add(
        &mut expected,
        "volumeMounts",
        json!({"name": "web", "mountPath": "/etc/kevtmon-web", "readOnly": true}),
    );
    let pod = &mut expected["spec"]["template"]["spec"];
    let volume = json!({"name": "web", "secret": {"secretName": "kevtmon-web", "defaultMode": 0o400}});
    pod["volumes"].as_array_mut().expect("a list").push(volume);
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        pod["containers"][0][probe]["httpGet"]["scheme"] = "HTTPS".into();
    }
    assert_eq!(set(&objects), &expected);

    let key = |secret: &str, key: &str| json!({"name": secret, "key": key});
    let mut expected = endpoint(&plain).clone();
    expected["scheme"] = "https".into();
    expected["tlsConfig"] = json!({"ca": {"secret": key("kevtmon-web", "ca.crt")}, "serverName": "kevtmon"});
    let with_certificates_only = expected.clone();
    expected["basicAuth"] = json!({
        "username": key("kevtmon-web-client", "username"),
        "password": key("kevtmon-web-client", "password"),
    });
    assert_eq!(endpoint(&objects), &expected);
    // With client certificates, or where no password is wanted.
    let without = json!({"secret": "kevtmon-web", "clientSecret": ""});
    let objects = rendered(&json!({"podMonitor": true, "webConfig": without}));
    assert_eq!(endpoint(&objects), &with_certificates_only);
}

#[test]
fn the_rules_of_the_operator_are_those_of_prometheus() {
    // Helm reads no file outside of the chart.
    is_made_of(&format!("{CHART}/kevtmon.rules.yaml"), &text(RULES));
    let objects = rendered(&json!({"prometheusRule": true}));
    let rule = of_kind(&objects, "PrometheusRule").expect("a PrometheusRule");
    assert_eq!(rule["metadata"]["namespace"], NAMESPACE);
    assert!(rule["spec"] == document(RULES), "the same, with its templates as they are");
}

#[test]
fn what_the_operator_reads_has_the_labels_by_which_it_is_selected() {
    let changed =
        json!({"podMonitor": true, "prometheusRule": true, "monitorLabels": {"release": "prometheus"}});
    let objects = rendered(&changed);
    for kind in ["PodMonitor", "PrometheusRule"] {
        let labels = &of_kind(&objects, kind).expect("it is made")["metadata"]["labels"];
        let expected = json!({"app.kubernetes.io/name": "kevtmon", "release": "prometheus"});
        assert_eq!(labels, &expected, "{kind}");
    }
}

#[test]
fn values_reach_the_pod() {
    let mount = json!({"name": "kubelet-log", "mountPath": "/var/log/kubelet", "readOnly": true});
    let volume = json!({"name": "kubelet-log", "hostPath": {"path": "/var/log/kubelet"}});
    let image = json!({"repository": "registry.example.org/kevtmon", "tag": "2", "pullPolicy": "Always"});
    let changed = json!({
        "image": image,
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"role": "worker"},
        "tolerations": [],
        "extraVolumes": [volume],
        "extraVolumeMounts": [mount],
        "config": "cmdline = \"off\"\n",
    });
    let documents = rendered(&changed);
    let pod = &set(&documents)["spec"]["template"]["spec"];
    let container = &list(pod, "containers")[0];
    assert_eq!(container["image"], "registry.example.org/kevtmon:2");
    assert_eq!(container["imagePullPolicy"], "Always");
    for member in ["imagePullSecrets", "nodeSelector", "tolerations"] {
        assert_eq!(pod[member], changed[member], "{member}");
    }
    assert_eq!(list(pod, "volumes").last(), Some(&volume), "after its own");
    assert_eq!(list(container, "volumeMounts").last(), Some(&mount));
    let map = of_kind(&documents, "ConfigMap").expect("a ConfigMap");
    assert_eq!(string(&map["data"], "kevtmon.toml"), "cmdline = \"off\"\n");
    let checksum = |documents: &[Value]| {
        let annotations = &set(documents)["spec"]["template"]["metadata"]["annotations"];
        string(annotations, "kevtmon/configuration").to_owned()
    };
    assert_ne!(
        checksum(&documents),
        checksum(&rendered(&json!({}))),
        "another configuration restarts the pods"
    );
}

#[test]
fn a_value_that_the_chart_does_not_know_is_refused() {
    for (changed, word) in [
        (json!({"priviledged": true}), "priviledged"),
        (json!({"webConfig": {"secret": "", "clientSecert": "kevtmon"}}), "clientSecert"),
        (json!({"privileged": "yes"}), "yes"),
        (json!({"monitorLabels": {"release": 1}}), "1"),
        (json!({"image": {"repository": "kevtmon", "tag": 2}}), "2"),
        (json!({"tolerations": [{"operator": "Exist"}]}), "Exist"),
    ] {
        let found = complaints(&values(&changed));
        assert!(matches!(&found[..], [one] if one.contains(word)), "{word}: {found:?}");
    }
}

#[test]
fn a_password_is_shown_to_nobody_without_tls() {
    let web = json!({"secret": "", "clientSecret": "kevtmon-web-client"});
    let ran = render(&json!({"podMonitor": true, "webConfig": web}));
    assert!(!ran.status.success() && ran.stderr.contains("webConfig.clientSecret"), "{}", ran.stderr);
}

#[test]
fn the_chart_is_of_the_version_of_the_workspace() {
    let chart = document(&format!("{CHART}/Chart.yaml"));
    for member in ["version", "appVersion"] {
        assert_eq!(string(&chart, member), env!("CARGO_PKG_VERSION"));
    }
}
