//! One check: a connection, or one GET request, of which only the status counts. No proxy is used, no redirection is followed, and the body is not
//! waited for.

use std::time::Duration;

use hyper::{
    Request, StatusCode,
    header::{ACCEPT, CONNECTION},
};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{net::TcpStream, time::timeout};

use super::{CheckError, Target};
use crate::types::with_sources;

/// Limit of the size of an answer's head, and of what is read ahead of its body.
const BUFFER_BYTES: usize = 16 * 1024;

/// Checks `target` within `limit`.
pub async fn check(target: &Target, limit: Duration) -> Result<(), CheckError> {
    let checking = async {
        match target {
            Target::Tcp(address) => match TcpStream::connect(address).await {
                Ok(_) => Ok(()),
                Err(error) => Err(CheckError::Failed(error.to_string())),
            },
            Target::Http(url) => match ask(url).await {
                Ok(status) if status.is_success() => Ok(()),
                Ok(status) => Err(CheckError::Status(status.as_u16())),
                Err(error) => Err(CheckError::Failed(with_sources(&*error))),
            },
        }
    };
    timeout(limit, checking)
        .await
        .unwrap_or(Err(CheckError::Late))
}

async fn ask(url: &str) -> Result<StatusCode, Box<dyn std::error::Error + Send + Sync>> {
    let request = Request::get(url)
        .header(ACCEPT, "*/*")
        .header(CONNECTION, "close")
        .body(String::new())?;
    let client = Client::builder(TokioExecutor::new())
        .http1_max_buf_size(BUFFER_BYTES)
        .pool_max_idle_per_host(0)
        .build_http();
    Ok(client.request(request).await?.status())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;

    async fn get(url: &str, limit: Duration) -> Result<(), CheckError> {
        check(&Target::Http(url.to_owned()), limit).await
    }

    const LIMIT: Duration = Duration::from_secs(20);

    /// A server that answers each connection with these bytes and leaves it open. The receiver gets the requests.
    async fn server(answer: &'static [u8]) -> (String, mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a loopback port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let (sender, asked) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap_or_default();
                let _ = sender.send(String::from_utf8_lossy(&request[..length]).into_owned());
                tokio::spawn(async move {
                    // The client may have closed the connection already, as it does not wait for the body.
                    drop(stream.write_all(answer).await);
                    std::future::pending::<()>().await;
                });
            }
        });
        (url, asked)
    }

    #[tokio::test]
    async fn any_2xx_is_health_and_nothing_else_is() {
        let answers: [(&[u8], bool); 6] = [
            (
                b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\nx",
                true,
            ),
            (b"HTTP/1.1 204 No Content\r\n\r\n", true),
            (b"HTTP/1.0 299 Odd\r\n\r\n", true),
            (
                b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
                false,
            ),
            (
                b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
                false,
            ),
            (
                b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
                false,
            ),
        ];
        for (answer, healthy) in answers {
            let (url, _asked) = server(answer).await;
            let result = get(&url, LIMIT).await;
            assert_eq!(
                result.is_ok(),
                healthy,
                "{}: {result:?}",
                String::from_utf8_lossy(answer)
            );
        }
    }

    #[tokio::test]
    async fn the_request_names_host_and_path() {
        let (url, mut asked) = server(b"HTTP/1.1 200 OK\r\n\r\n").await;
        get(&format!("{url}/health?deep=1#part"), LIMIT)
            .await
            .expect("it is healthy");
        let request = asked.recv().await.expect("it was asked");
        assert!(
            request.starts_with("GET /health?deep=1 HTTP/1.1\r\n"),
            "{request}"
        );
        assert!(
            request.contains(&format!("host: {}\r\n", url.trim_start_matches("http://"))),
            "{request}"
        );
    }

    #[tokio::test]
    async fn a_head_without_end_and_an_answer_that_does_not_come_are_no_health() {
        let head: &'static [u8] = format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(4 * BUFFER_BYTES))
            .leak()
            .as_bytes();
        let (url, _asked) = server(head).await;
        let error = get(&url, LIMIT).await.expect_err("too much");
        assert!(matches!(error, CheckError::Failed(_)), "{error}");
        let (url, _asked) = server(b"HTTP/1.1 200").await;
        let error = get(&url, Duration::from_millis(50))
            .await
            .expect_err("nothing");
        assert_eq!(error, CheckError::Late);
        assert!(get("http://127.0.0.1:1/", LIMIT).await.is_err());
    }

    /// A process cannot change its environment for one test, so the test starts itself again.
    #[tokio::test]
    async fn a_proxy_of_the_environment_is_not_asked() {
        const AGAIN: &str = "PUTEX_TEST_PROXY";
        if std::env::var_os(AGAIN).is_some() {
            let result = get("http://127.0.0.1:1/", LIMIT).await;
            assert!(result.is_err(), "nobody listens there");
            return;
        }
        let (url, mut asked) = server(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        let module = module_path!()
            .split_once("::")
            .expect("it is in a module")
            .1;
        let name = format!("{module}::a_proxy_of_the_environment_is_not_asked");
        let mut again = Command::new(std::env::current_exe().expect("this test"));
        again
            .args(["--exact", &name])
            .env(AGAIN, "1")
            .env_remove("no_proxy")
            .env_remove("NO_PROXY");
        for variable in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
            again.env(variable, &url);
        }
        let ended = tokio::task::spawn_blocking(move || again.output())
            .await
            .expect("a thread")
            .expect("it runs");
        assert!(
            ended.status.success(),
            "{}",
            String::from_utf8_lossy(&ended.stdout)
        );
        assert!(
            String::from_utf8_lossy(&ended.stdout).contains("1 passed"),
            "{ended:?}"
        );
        assert!(asked.try_recv().is_err(), "the proxy was asked");
    }
}
