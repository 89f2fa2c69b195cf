//! The table of routes, of which the router and `/openapi.json` are made.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::routing::MethodRouter;
use serde_json::{Map, Value, json};

use super::App;
use crate::error::json_body;
use crate::guard::{JSON, body_type};

/// A method of a path.
pub(super) struct Route {
    pub method: &'static str,
    /// As axum has it: `{id}` is a part of the path, `{*id}` its rest.
    pub path: String,
    /// Fields that a body must have.
    pub required: &'static [&'static str],
    /// What the route does.
    pub summary: &'static str,
    pub handler: MethodRouter<Arc<App>>,
}

/// Routes: method, path, fields that a body must have, handler, and what the route does.
macro_rules! routes {
    ($($method:ident $path:literal $([$($field:literal),*])? $handler:path, $summary:literal;)*) => {
        vec![$($crate::routes::table::Route {
            method: stringify!($method),
            path: $path.to_owned(),
            required: &[$($($field),*)?],
            summary: $summary,
            handler: axum::routing::$method($handler),
        }),*]
    };
}
pub(super) use routes;

/// The router of a table, and of the document that describes the table.
pub(super) fn router(mut table: Vec<Route>) -> Router<Arc<App>> {
    let describe = |document: Bytes| {
        let show = move || async move { json_body(document) };
        routes![get "/openapi.json" show, "This document.";]
    };
    let described = table.len();
    table.extend(describe(Bytes::new()));
    let document = openapi(&table).to_string();
    table.truncate(described);
    table.extend(describe(document.into()));
    let routes = table.into_iter();
    routes.fold(Router::new(), |router, route| {
        router.route(&route.path, route.handler)
    })
}

/// The routes as an OpenAPI document. Fields are described in the user's documentation, and by the
/// schemas of the APIs.
fn openapi(table: &[Route]) -> Value {
    let mut paths = Map::new();
    for route in table {
        let path = route.path.replace("{*", "{");
        let item = paths.entry(path.clone()).or_insert_with(|| json!({}));
        item[route.method] = operation(route, &path);
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Thane", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    })
}

fn operation(route: &Route, path: &str) -> Value {
    let mut operation = json!({
        "summary": route.summary,
        "responses": {
            "200": {"description": "The answer."},
            "default": {"description": "An error, in the shape of the API."},
        },
    });
    let parts = path.split('/').filter_map(|part| part.strip_prefix('{'));
    let names = parts.filter_map(|part| part.strip_suffix('}'));
    let parameter =
        |name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
    let parameters: Vec<Value> = names.map(parameter).collect();
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if route.method == "post" {
        let schema = match body_type(path) {
            JSON => json!({"type": "object", "required": route.required}),
            _ => json!({}),
        };
        operation["requestBody"] =
            json!({"required": true, "content": {body_type(path): {"schema": schema}}});
    }
    operation
}
