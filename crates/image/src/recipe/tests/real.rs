//! Dockerfiles as people write them.

use super::*;

const PYTHON: &str = r#"# syntax=docker/dockerfile:1

ARG PYTHON_VERSION=3.12
FROM python:${PYTHON_VERSION}-slim AS base

ENV PYTHONDONTWRITEBYTECODE=1 \
    # Logs must come out at once.
    PYTHONUNBUFFERED=1

WORKDIR /app

ARG UID=10001
RUN adduser \
    --disabled-password \
    --gecos "" \
    --uid "${UID}" \
    appuser

COPY requirements.txt .
RUN python -m pip install --no-cache-dir -r requirements.txt

USER appuser
COPY --chown=appuser:appuser . .
EXPOSE 8000
CMD ["uvicorn", "app:app", "--host=0.0.0.0", "--port=8000"]
"#;

const GO: &str = r#"FROM golang:1.22 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=linux go build -ldflags="-s -w" -o /out/server ./cmd/server

FROM build AS test
RUN go test ./...

FROM scratch
LABEL org.opencontainers.image.title="server" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/server /server
USER 65532:65532
ENTRYPOINT ["/server"]
"#;

const NODE: &str = r#"FROM node:20-alpine
ENV NODE_ENV production
WORKDIR /usr/src/app
COPY ["package.json", "package-lock.json*", "npm-shrinkwrap.json*", "./"]
RUN npm install --production --silent && mv node_modules ../
COPY . .
EXPOSE 3000
RUN chown -R node /usr/src/app
USER node
CMD ["npm", "start"]
"#;

#[test]
fn a_python_service() {
    let recipe = dockerfile(PYTHON);
    assert_eq!(recipe.stages[0].base, Base::Image("python:3.12-slim".to_owned()));
    let (effects, scene) = walked(&recipe, 0, &ImageConfig::default()).expect("it can be walked");
    let config = scene.config();
    assert_eq!(config.user.as_deref(), Some("appuser"));
    assert_eq!(config.working_dir.as_deref(), Some("/app"));
    assert_eq!(config.cmd[0], "uvicorn");
    assert_eq!(config.env.len(), 2);
    let [
        _,
        Effect::Directory(app),
        _,
        Effect::Run(adduser),
        Effect::Copy(wanted),
        Effect::Run(pip),
        ..,
    ] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(app.path, "/app");
    assert!(adduser.argv[2].contains("--uid \"${UID}\""), "{adduser:?}");
    assert!(adduser.env.contains(&("UID".to_owned(), "10001".to_owned())), "{adduser:?}");
    assert_eq!((paths(wanted), wanted.to.as_str()), (vec!["requirements.txt"], "/app/"));
    assert_eq!(pip.user, None);
}

#[test]
fn a_go_service_in_stages() {
    let recipe = dockerfile(GO);
    assert_eq!(recipe.stages.len(), 3);
    assert_eq!(recipe.stages[1].base, Base::Stage(0));
    assert_eq!(recipe.needed(2), BTreeSet::from([0, 2]), "tests are not needed for the service");
    let (effects, scene) = walked(&recipe, 2, &ImageConfig::default()).expect("it can be walked");
    let [Effect::Noted, Effect::Copy(copied), ..] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((&copied.from, copied.to.as_str()), (&Origin::Stage(0), "/server"));
    assert_eq!(scene.config().labels.len(), 2);
    assert_eq!(scene.config().entrypoint, ["/server"]);
    assert_eq!(scene.config().user.as_deref(), Some("65532:65532"));
}

#[test]
fn a_node_service() {
    let recipe = dockerfile(NODE);
    let (effects, scene) = walked(&recipe, 0, &ImageConfig::default()).expect("it can be walked");
    assert_eq!(scene.config().env, [("NODE_ENV".to_owned(), "production".to_owned())]);
    let Some(Effect::Copy(copied)) = effects.get(2) else { panic!("{effects:?}") };
    assert_eq!(paths(copied), ["package.json", "package-lock.json*", "npm-shrinkwrap.json*"]);
    assert_eq!(copied.to, "/usr/src/app/");
    assert_eq!(recipe.stages[0].steps[3].line, 5);
}
