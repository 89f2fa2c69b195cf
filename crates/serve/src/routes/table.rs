//! The table of routes, of which the router and `/openapi.json` are made.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::handler::Handler;
use axum::routing::{MethodRouter, delete, get, post};
use serde_json::{Map, Value, json};

use super::App;
use crate::error::json_body;

/// A method of a path.
pub(super) struct Route {
    method: &'static str,
    /// As axum has it: `{id}` is a part of the path, `{*id}` its rest.
    path: String,
    /// What the route does.
    summary: &'static str,
    /// Fields that a body must have.
    required: &'static [&'static str],
    /// Type of the body.
    body: &'static str,
    handler: MethodRouter<Arc<App>>,
}

impl Route {
    pub fn get<T: 'static>(
        path: &str,
        summary: &'static str,
        handler: impl Handler<T, Arc<App>>,
    ) -> Self {
        Self {
            method: "get",
            path: path.to_owned(),
            summary,
            required: &[],
            body: "application/json",
            handler: get(handler),
        }
    }

    pub fn delete<T: 'static>(
        path: &str,
        summary: &'static str,
        handler: impl Handler<T, Arc<App>>,
    ) -> Self {
        Self {
            method: "delete",
            handler: delete(handler),
            ..Self::get(path, summary, || async {})
        }
    }

    pub fn post<T: 'static>(
        path: &str,
        required: &'static [&'static str],
        summary: &'static str,
        handler: impl Handler<T, Arc<App>>,
    ) -> Self {
        Self {
            method: "post",
            path: path.to_owned(),
            summary,
            required,
            body: "application/json",
            handler: post(handler),
        }
    }

    /// A route that takes a file.
    pub fn upload<T: 'static>(
        path: &str,
        summary: &'static str,
        handler: impl Handler<T, Arc<App>>,
    ) -> Self {
        Self {
            body: "application/zip",
            ..Self::post(path, &[], summary, handler)
        }
    }
}

/// The router of a table, and of the document that describes the table.
pub(super) fn router(mut table: Vec<Route>) -> Router<Arc<App>> {
    let path = "/openapi.json";
    let summary = "This document.";
    table.push(Route::get(path, summary, || async {}));
    let document = Bytes::from(openapi(&table).to_string());
    let described = move || async move { json_body(document) };
    table.pop();
    table.push(Route::get(path, summary, described));
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
        let schema = match route.body {
            "application/json" => json!({"type": "object", "required": route.required}),
            _ => json!({}),
        };
        operation["requestBody"] =
            json!({"required": true, "content": {route.body: {"schema": schema}}});
    }
    operation
}
