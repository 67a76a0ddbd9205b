"""Settings: who wins, where each value came from, and what a wrong one is told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.errors import UsageError
from foliot.settings.settings import RULES, Settings, load_settings, mask_password


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def environ(home: Path) -> dict[str, str]:
    home.mkdir()
    return {"FOLIOT_HOME": str(home)}


def write_config(home: Path, text: str) -> Path:
    path = home / "config.toml"
    path.write_text(text)
    return path


class TestOrder:
    def test_defaults_are_below_the_home_folder(self) -> None:
        settings = load_settings({}, {})

        home = Path.home() / ".foliot"
        assert settings.home == home
        assert settings.store == f"sqlite:///{home}/foliot.db"
        assert settings.secret_key_file == home / "secret.key"
        assert (settings.namespace, settings.log_level) == ("default", "warning")
        assert (settings.nats, settings.secret_key) == (None, None)
        assert {origin for _, _, origin in settings.explain()} == {"default"}

    def test_flag_beats_environment_beats_file_beats_default(self, environ: dict[str, str], home: Path) -> None:
        def namespace(flags: dict[str, str | None]) -> tuple[str, str]:
            settings = load_settings(flags, environ)
            return settings.namespace, settings.origin("namespace")

        assert namespace({}) == ("default", "default")
        path = write_config(home, 'namespace = "from-file"')
        assert namespace({}) == ("from-file", f"file {path}, key namespace")
        environ["FOLIOT_NAMESPACE"] = "from-environment"
        assert namespace({"namespace": None}) == ("from-environment", "environment FOLIOT_NAMESPACE")
        assert namespace({"namespace": "typed"}) == ("typed", "flag --namespace")

    def test_an_empty_variable_counts_as_unset(self, environ: dict[str, str]) -> None:
        assert load_settings({}, {**environ, "FOLIOT_NAMESPACE": ""}).namespace == "default"

    def test_an_empty_secret_key_is_kept_so_that_it_is_refused(self, environ: dict[str, str]) -> None:
        assert load_settings({}, {**environ, "FOLIOT_SECRET_KEY": ""}).secret_key == ""

    def test_another_config_file_can_be_named(self, environ: dict[str, str], tmp_path: Path) -> None:
        path = tmp_path / "other.toml"
        path.write_text('store = "data/x.db"\nlog_level = "DEBUG"')

        settings = load_settings({}, {**environ, "FOLIOT_CONFIG": str(path)})

        assert settings.store == f"sqlite:///{tmp_path}/data/x.db", "paths in a file start at the file"
        assert settings.log_level == "debug"
        assert load_settings({"config": str(path)}, environ) == settings

    def test_settings_cannot_be_changed(self) -> None:
        with pytest.raises(FrozenInstanceError):
            load_settings({}, {}).namespace = "x"  # type: ignore[misc]

    def test_an_unknown_flag_is_a_mistake_of_the_program(self) -> None:
        with pytest.raises(ValueError, match="no such setting: colour"):
            load_settings({"colour": "red"}, {})


class TestStore:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("x.db", "sqlite:///{cwd}/x.db"),
            ("/abs/x.db", "sqlite:////abs/x.db"),
            ("../x.db", "sqlite:///{parent}/x.db"),
            ("sqlite:///x.db", "sqlite:///{cwd}/x.db"),
            ("sqlite:////abs/x.db", "sqlite:////abs/x.db"),
            ("postgresql://u:p@h:5/db?sslmode=require", "postgresql://u:p@h:5/db?sslmode=require"),
            ("postgres://h/db", "postgresql://h/db"),
        ],
    )
    def test_paths_and_urls_are_read_and_no_longer_depend_on_the_folder(
        self, text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)

        store = load_settings({"store": text}, {}).store

        assert store == expected.format(cwd=tmp_path, parent=tmp_path.parent)

    @pytest.mark.parametrize(
        "text", ["mysql://h/db", "sqlite://", "sqlite:///", "sqlite:///:memory:", ":memory:", "postgresql://"]
    )
    def test_other_stores_are_refused_with_what_is_expected(self, text: str) -> None:
        with pytest.raises(UsageError, match="environment FOLIOT_STORE: ") as caught:
            load_settings({}, {"FOLIOT_STORE": text})
        assert "postgresql://user@host/database" in (caught.value.hint or "")


class TestWrongValues:
    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("namespace", "-team", "a letter or digit at both ends"),
            ("namespace", "a/b", "letters, digits"),
            ("namespace", "x" * 254, "letters, digits"),
            ("log_level", "loud", "one of debug, info, warning, error"),
            ("retention_size", "10", "a size with its unit"),
            ("retention_size", "10737418240", "a size with its unit"),
            ("retention_size", "63MiB", "at least 64MiB"),
            ("nats", "localhost:4222", "nats://host:port"),
            ("nats_stream", "a.b", "letters, digits, dashes and underscores"),
            ("nats_prefix", "a.>", "words of letters"),
            ("home", "~no-such-user-here/x", "no such user"),
            ("secret_key_file", "a\nb", "without control characters"),
            ("outbound_allow", "10.0.0.1/8", "has host bits set"),
            ("tool_modules", "desk:find", "names of Python modules"),
            ("tool_modules", "acme.*.tools", "names of Python modules"),
            ("tool_modules", "*", "names of Python modules"),
            ("mcp_commands", "TOKEN=*", "programs on PATH"),
            ("wasm_modules", "~no-such-user-here/x", "no such user"),
            ("outbound_allow", "intranet.example, http://x", "hosts and networks"),
            ("outbound_allow", "0x7f.1", "hosts and networks"),
        ],
    )
    def test_a_wrong_value_names_its_place_and_what_is_expected(self, name: str, value: str, expected: str) -> None:
        variable = f"FOLIOT_{name.upper()}"

        with pytest.raises(UsageError, match=f"environment {variable}: ") as caught:
            load_settings({}, {variable: value})
        assert expected in (caught.value.hint or "")

    def test_an_empty_flag_is_refused(self) -> None:
        with pytest.raises(UsageError, match="flag --store: is empty"):
            load_settings({"store": " "}, {})

    def test_a_secret_is_not_taken_from_the_command_line(self) -> None:
        with pytest.raises(UsageError, match="flag --secret-key: a secret on the command line") as caught:
            load_settings({"secret_key": "0123"}, {})
        assert "0123" not in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "problem", "hint"),
        [
            ('stor = "x"', "key stor: there is no such setting", "did you mean store?"),
            ('whatever = "x"', "key whatever: there is no such setting", "known are store, store_wait"),
            ('secret_key = "abc"', "key secret_key: cannot be set in a file", "FOLIOT_SECRET_KEY"),
            ('home = "/x"', "key home: cannot be set in a file", "FOLIOT_HOME"),
            ("namespace = 3", "key namespace: expected text in quotes, found int", None),
            ('namespace = ""', "key namespace: is empty", None),
            ("[store]\nurl = 1", "key store: expected text in quotes, found dict", None),
            ("namespace = x\n", "not TOML: .*line 1, column", None),
            (f"a = {'[' * 5000}", "not TOML: nested too deeply", None),
            ('log_level = "loud"', "key log_level: 'loud' cannot be used", "one of debug"),
        ],
    )
    def test_a_wrong_file_is_told_with_file_and_key(
        self, environ: dict[str, str], home: Path, text: str, problem: str, hint: str | None
    ) -> None:
        path = write_config(home, text)

        with pytest.raises(UsageError, match=problem) as caught:
            load_settings({}, environ)
        assert str(path) in caught.value.message
        assert hint is None or hint in (caught.value.hint or "")

    def test_a_file_that_is_not_text_or_not_a_file_is_told(self, environ: dict[str, str], home: Path) -> None:
        (home / "config.toml").write_bytes(b"\xff\xff")
        with pytest.raises(UsageError, match="not UTF-8"):
            load_settings({}, environ)
        with pytest.raises(UsageError, match="cannot be read"):
            load_settings({}, {**environ, "FOLIOT_CONFIG": str(home)})

    def test_a_named_file_must_exist(self, environ: dict[str, str], tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"nowhere\.toml does not exist"):
            load_settings({"config": str(tmp_path / "nowhere.toml")}, environ)


class TestWarnings:
    def test_a_misspelt_variable_is_noticed(self) -> None:
        settings = load_settings(
            {}, {"FOLIOT_NAMESPCE": "x", "FOLIOT_STORE": "a.db", "OTHER": "1", "FOLIOT_DEBUG": "1"}
        )

        (warning,) = settings.warnings
        assert warning == (
            "the environment variable FOLIOT_NAMESPCE is not a setting and has no effect; "
            "did you mean FOLIOT_NAMESPACE?"
        )

    def test_a_variable_like_no_other_is_left_alone(self) -> None:
        assert load_settings({}, {"FOLIOT_MY_OWN_THING": "1"}).warnings == ()

    def test_a_secret_is_not_taken_for_a_misspelt_setting(self) -> None:
        assert load_settings({}, {"FOLIOT_SECRET_KEYS": "1", "FOLIOT_SECRET_K": "1"}).warnings == ()


class TestOutbound:
    def test_hosts_and_networks_are_a_list(self, environ: dict[str, str]) -> None:
        environ["FOLIOT_OUTBOUND_ALLOW"] = "Intranet.example, *.svc.local,10.1.0.0/16 , ::1,127.0.0.1"
        settings = load_settings({}, environ)
        assert settings.outbound_allow == ("intranet.example", "*.svc.local", "10.1.0.0/16", "::1", "127.0.0.1")
        assert ("outbound_allow", ", ".join(settings.outbound_allow)) in [row[:2] for row in settings.explain()]

    def test_without_it_nothing_is_allowed(self, environ: dict[str, str]) -> None:
        assert load_settings({}, environ).outbound_allow == ()


class TestMcpCommands:
    def test_names_and_absolute_paths_are_listed(self, environ: dict[str, str]) -> None:
        environ["FOLIOT_MCP_COMMANDS"] = "npx, /opt/tools/search ,uvx"
        assert load_settings({}, environ).mcp_commands == ("npx", "/opt/tools/search", "uvx")

    def test_a_relative_path_is_refused(self, environ: dict[str, str]) -> None:
        environ["FOLIOT_MCP_COMMANDS"] = "./server"
        with pytest.raises(UsageError, match="FOLIOT_MCP_COMMANDS"):
            load_settings({}, environ)

    def test_without_it_nothing_may_be_started(self, environ: dict[str, str]) -> None:
        assert load_settings({}, environ).mcp_commands == ()


class TestSandboxLimits:
    def test_sizes_and_numbers_are_listed_and_shown_as_numbers(self, environ: dict[str, str]) -> None:
        environ["FOLIOT_SANDBOX_LIMITS"] = "memory=4Gi, processes=512,cpus=0.5 , quota=10Gi"
        settings = load_settings({}, environ)
        assert settings.sandbox_limits == {"memory": 4 << 30, "processes": 512, "cpus": 0.5, "quota": 10 << 30}
        shown = dict(row[:2] for row in settings.explain())["sandbox_limits"]
        assert load_settings({}, {"FOLIOT_SANDBOX_LIMITS": shown}).sandbox_limits == settings.sandbox_limits

    @pytest.mark.parametrize(
        "text", ["memory", "memory=", "memory=much", "memroy=1Gi", "cpus=nan", "cpus=inf", "quota=0"]
    )
    def test_what_is_no_limit_is_refused(self, environ: dict[str, str], text: str) -> None:
        environ["FOLIOT_SANDBOX_LIMITS"] = text
        with pytest.raises(UsageError, match="FOLIOT_SANDBOX_LIMITS"):
            load_settings({}, environ)


class TestLogin:
    def test_lengths_of_time_are_in_seconds(self, environ: dict[str, str]) -> None:
        environ |= {"FOLIOT_SESSION_IDLE": "30m", "FOLIOT_SESSION_LIFE": "2d"}
        settings = load_settings({}, environ)
        assert (settings.session_idle, settings.session_life) == (1800, 172800)

    @pytest.mark.parametrize(("text", "seconds"), [("1h30m", 5400), ("1.5h", 5400), ("1d12h", 129_600), ("9000ms", 9)])
    def test_they_are_written_as_in_manifests(self, environ: dict[str, str], text: str, seconds: int) -> None:
        assert load_settings({}, {**environ, "FOLIOT_SESSION_IDLE": text}).session_idle == seconds

    @pytest.mark.parametrize("text", ["30m", "59m59s", "30", "3661d", "soon"])
    def test_what_is_kept_is_kept_for_an_hour_at_least(self, environ: dict[str, str], text: str) -> None:
        with pytest.raises(UsageError, match="FOLIOT_RETENTION_RUNS"):
            load_settings({}, {**environ, "FOLIOT_RETENTION_RUNS": text})

    @pytest.mark.parametrize("text", ["0s", "12", "h", "1500ms", "-1h", "1w", "367d", "9999999999s", "١h"])
    def test_what_is_no_length_of_time_is_refused(self, environ: dict[str, str], text: str) -> None:
        with pytest.raises(UsageError, match="FOLIOT_SESSION_IDLE"):
            load_settings({}, {**environ, "FOLIOT_SESSION_IDLE": text})

    @pytest.mark.parametrize("url", ["https://id.example/realms/a", "http://localhost:9400", "http://[::1]:9400/"])
    def test_an_issuer_stays_as_it_is_written(self, environ: dict[str, str], url: str) -> None:
        assert load_settings({}, {**environ, "FOLIOT_OIDC_ISSUER": url}).oidc_issuer == url

    @pytest.mark.parametrize(
        "url", ["id.example", "http://id.example", "https://", "https://u:p@id.example", "https://id.example?x=1"]
    )
    def test_an_issuer_that_cannot_be_trusted_is_refused(self, environ: dict[str, str], url: str) -> None:
        with pytest.raises(UsageError, match="FOLIOT_OIDC_ISSUER"):
            load_settings({}, {**environ, "FOLIOT_OIDC_ISSUER": url})

    def test_roles_follow_from_groups(self, environ: dict[str, str]) -> None:
        environ["FOLIOT_OIDC_ROLES"] = "cn=admins=admin@*, devs=author@team-a,*=reader@default"
        told = load_settings({}, environ).oidc_roles
        assert told == ("cn=admins=admin@*", "devs=author@team-a", "*=reader@default")

    @pytest.mark.parametrize("text", ["devs", "devs=author", "=author@a", "devs=@a", "devs=author@", "devs=author@a b"])
    def test_a_rule_for_roles_that_cannot_be_meant_is_refused(self, environ: dict[str, str], text: str) -> None:
        with pytest.raises(UsageError, match="FOLIOT_OIDC_ROLES"):
            load_settings({}, {**environ, "FOLIOT_OIDC_ROLES": text})

    def test_the_secret_of_the_client_comes_from_the_environment_only_and_is_never_shown(
        self, environ: dict[str, str], home: Path
    ) -> None:
        settings = load_settings({}, {**environ, "FOLIOT_OIDC_CLIENT_SECRET": "sesame"})
        assert settings.oidc_client_secret == "sesame"
        assert "sesame" not in repr(settings)
        write_config(home, 'oidc_client_secret = "sesame"')
        with pytest.raises(UsageError, match="cannot be set in a file"):
            load_settings({}, environ)


class TestLimits:
    def test_origins_are_origins(self, environ: dict[str, str]) -> None:
        settings = load_settings({}, {**environ, "FOLIOT_CORS_ORIGINS": "https://A.example, http://localhost:5173"})
        assert settings.cors_origins == ("https://a.example", "http://localhost:5173")

    @pytest.mark.parametrize("text", ["*", "null", "https://*.example", "https://a.example/", "a.example", "ftp://a"])
    def test_what_is_no_origin_is_refused(self, environ: dict[str, str], text: str) -> None:
        with pytest.raises(UsageError, match="FOLIOT_CORS_ORIGINS"):
            load_settings({}, {**environ, "FOLIOT_CORS_ORIGINS": text})


class TestShowing:
    def test_every_setting_is_explained_with_secrets_masked(self, tmp_path: Path) -> None:
        settings = load_settings(
            {"nats": "nats://sesame@h:4222"},
            {
                "FOLIOT_HOME": str(tmp_path),
                "FOLIOT_SECRET_KEY": "sesame",
                "FOLIOT_STORE": "postgresql://me:sesame@h/db?passfile=sesame",
            },
        )

        assert settings.explain() == [
            ("home", str(tmp_path), "environment FOLIOT_HOME"),
            ("store", "postgresql://me:****@h/db?passfile=****", "environment FOLIOT_STORE"),
            ("store_wait", "", "default"),
            ("lease", "30", "default"),
            ("namespace", "default", "default"),
            ("secret_key", "********", "environment FOLIOT_SECRET_KEY"),
            ("secret_key_file", str(tmp_path / "secret.key"), "default"),
            ("log_level", "warning", "default"),
            ("log_format", "text", "default"),
            ("otel_endpoint", "", "default"),
            ("otel_headers", "", "default"),
            ("otel_service", "foliot", "default"),
            ("nats", "nats://****@h:4222", "flag --nats"),
            ("nats_credentials", "", "default"),
            ("nats_ca", "", "default"),
            ("nats_cert", "", "default"),
            ("nats_cert_key", "", "default"),
            ("nats_stream", "FOLIOT_AGENT_MESSAGES", "default"),
            ("nats_prefix", "foliot.agentmsg", "default"),
            ("nats_caller", "foliot", "default"),
            ("nats_caller_key", "", "default"),
            ("nats_subjects", "", "default"),
            ("nats_callers", "", "default"),
            ("outbound_allow", "", "default"),
            ("tool_modules", "", "default"),
            ("wasm_modules", "", "default"),
            ("wasm_folders", "", "default"),
            ("sandbox_mounts", "", "default"),
            ("sandbox_limits", "", "default"),
            ("container_images", "", "default"),
            ("container_image", "", "default"),
            ("container_cli", "", "default"),
            ("container_runtime", "", "default"),
            ("mcp_commands", "", "default"),
            ("workspace", "", "default"),
            ("workspaces", "", "default"),
            ("workspace_sources", "", "default"),
            ("retention_workspaces", "86400", "default"),
            ("default_tool_access", "allow", "default"),
            ("allowed_tools", "", "default"),
            ("plugins", "", "default"),
            ("audit_sinks", "", "default"),
            ("retention_runs", "2592000", "default"),
            ("retention_audit", "31536000", "default"),
            ("retention_size", "10737418240", "default"),
            ("listen", "127.0.0.1:8080", "default"),
            ("public_url", "", "default"),
            ("tls_cert", "", "default"),
            ("tls_key", "", "default"),
            ("tls_client_ca", "", "default"),
            ("max_body", "4194304", "default"),
            ("max_media_body", "50331648", "default"),
            ("request_rate", "500", "default"),
            ("request_burst", "2000", "default"),
            ("auth_failures", "30", "default"),
            ("max_connections", "4096", "default"),
            ("cors_origins", "", "default"),
            ("max_streams", "1000", "default"),
            ("session_idle", "43200", "default"),
            ("session_life", "604800", "default"),
            ("oidc_issuer", "", "default"),
            ("oidc_client_id", "", "default"),
            ("oidc_client_secret", "", "default"),
            ("oidc_redirect_url", "", "default"),
            ("oidc_scopes", "openid, profile, email", "default"),
            ("oidc_name_claim", "preferred_username", "default"),
            ("oidc_roles_claim", "groups", "default"),
            ("oidc_roles", "", "default"),
            ("oidc_audience", "", "default"),
            ("server", "", "default"),
            ("token", "", "default"),
            ("token_file", "", "default"),
            ("server_ca", "", "default"),
            ("server_cert", "", "default"),
            ("server_cert_key", "", "default"),
        ]
        assert "sesame" not in repr(settings)
        assert "sesame" not in str(settings)

    @given(
        password=st.text(
            st.characters(codec="ascii", exclude_characters="&", categories=["L", "N", "P", "S"]), min_size=1
        ),
        where=st.sampled_from(["{s}://u:{p}@h/db", "{s}://u:{p}@h:1/db?a=b", "{s}://h/db?x=y&password={p}&z=1"]),
        scheme=st.sampled_from(["postgresql", "nats"]),
    )
    def test_a_password_is_hidden_even_when_badly_escaped(self, password: str, where: str, scheme: str) -> None:
        marked = f"SECRET{password}TERCES"

        shown = mask_password(where.format(s=scheme, p=marked))

        assert "SECRET" not in shown
        assert "TERCES" not in shown

    def test_a_refused_url_does_not_show_its_password(self) -> None:
        with pytest.raises(UsageError) as caught:
            load_settings({"store": "mysql://me:sesame@h/db"}, {})
        assert "sesame" not in f"{caught.value} {caught.value.hint}"

    def test_the_table_covers_every_field_but_the_bookkeeping(self) -> None:
        assert set(Settings.__dataclass_fields__) - set(RULES) == {"origins", "warnings"}


def test_loading_settings_imports_no_parser_without_a_file(tmp_path: Path) -> None:
    code = (
        "import sys; from foliot.settings.settings import load_settings\n"
        "load_settings({}, {'FOLIOT_HOME': sys.argv[1]})\n"
        "assert not {'tomllib', 'difflib', 'pydantic', 'asyncio'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=110)
