// Node's fetch, which is its own, and undici, which is the package. Prints what worked.
//
//     node clients.mjs fetch|undici
import assert from "node:assert";

async function streamed(fetch, stream) {
    const answer = await fetch(`https://web.test/events?stream=${stream}`);
    let number = 0;
    for await (const part of answer.body.pipeThrough(new TextDecoderStream())) {
        assert.equal(part, `data: ${number}\n\n`);
        number += 1;
        await (await fetch(`https://web.test/read?stream=${stream}`)).text();
    }
    assert.equal(number, 5);
}

async function all(fetch, name) {
    assert.equal(await (await fetch("https://web.test/hello")).text(), "hello\n");
    const posted = await fetch("https://web.test/echo", { method: "POST", body: "hi" });
    assert.match(await posted.text(), / hi$/);
    await streamed(fetch, name);
}

if (process.argv[2] === "fetch") {
    await all(fetch, "fetch");
} else {
    const undici = await import("undici");
    await all(undici.fetch, "undici");
    const asked = await undici.request("https://web.test/hello");
    assert.equal(await asked.body.text(), "hello\n");
    const http2 = new undici.Agent({ allowH2: true });
    const answer = await undici.request("https://web.test/echo", { dispatcher: http2, method: "POST", body: "hi" });
    assert.equal(await answer.body.text(), "POST HTTP/2.0 hi");
    await http2.close();
}
console.log("worked");
