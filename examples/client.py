"""A client that keeps to the limit it is told: after a 429 it waits as long as it says, and a little more.

    python3 examples/client.py http://localhost:8080/orders shop-demo 5

Standard library only.
"""

import random
import sys
import time
import urllib.error
import urllib.request


class Client:
    """One connection's worth of calls with one API key."""

    def __init__(self, key, most_attempts=5):
        self.key = key
        self.most_attempts = most_attempts

    def post(self, url, body=b""):
        """The answer's status and body; asks again after a 429 or 503, as late as it is told to."""
        for attempt in range(1, self.most_attempts + 1):
            request = urllib.request.Request(url, data=body, headers={"X-Api-Key": self.key})
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as refusal:
                wait = refusal.headers.get("Retry-After")
                # Without Retry-After a 429 can never pass: one request costs more than the bucket holds.
                if refusal.code not in (429, 503) or wait is None or attempt == self.most_attempts:
                    return refusal.code, refusal.read()
                # At least as long as told; a little at random, so that many clients do not come back at once.
                time.sleep(int(wait) + random.uniform(0, 0.25 * int(wait)))
        return None


if __name__ == "__main__":
    url, key, calls = sys.argv[1], sys.argv[2], int(sys.argv[3])
    client = Client(key)
    for call in range(1, calls + 1):
        status, _ = client.post(url)
        print(f"call {call}: {status}")
