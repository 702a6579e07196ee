#ifndef QGEMM_SERVER_FAIR_QUEUE_H_
#define QGEMM_SERVER_FAIR_QUEUE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace qgemm {

// Which queue work stands in.
enum class WorkClass {
  kInteractive = 0,  // somebody waits for it
  kBatch = 1,
  kBackground = 2,  // the daemon's own; only when nothing else can be done
};

// Whose work something is, and how it queues.
struct Flow {
  std::string client;
  WorkClass work_class = WorkClass::kInteractive;
  int priority = 0;  // among the same client's work of the same class: higher first
};

// A queue that is fair between clients. Within a class the client that was served longest ago is next;
// within a client the higher priority, then the order of arrival. Interactive work goes before batch work,
// but not more than twice in a row: so one client's single item waits for at most two others, whatever their
// class and however many they are. An item may stand in several flows at once; it is taken once.
//
// A plain data structure: deterministic, not thread-safe. T is small, copyable, equality-comparable and
// hashable (a pointer).
template <typename T>
class FairQueue {
 public:
  void Push(const Flow& flow, const T& item) {
    const size_t lane = static_cast<size_t>(flow.work_class);
    const Position position{-flow.priority, next_position_++};
    lanes_[lane][flow.client].emplace(position, item);
    places_.emplace(item, Place{lane, flow.client, position});
  }

  // Takes the item out of every flow; false when it stood in none.
  bool Remove(const T& item) {
    const auto [begin, end] = places_.equal_range(item);
    if (begin == end) return false;
    for (auto place = begin; place != end; ++place) Drop(place->second);
    places_.erase(begin, end);
    return true;
  }

  // Takes the item out of the client's flow of that class alone.
  void RemoveFrom(const Flow& flow, const T& item) {
    auto [place, end] = places_.equal_range(item);
    while (place != end) {
      if (place->second.lane == static_cast<size_t>(flow.work_class) && place->second.client == flow.client) {
        Drop(place->second);
        place = places_.erase(place);
      } else {
        ++place;
      }
    }
  }

  struct Taken {
    T item;
    std::string client;  // whose turn it was
  };
  // Takes the next item for which `item_ok` holds of the next client for which `client_ok` holds.
  template <typename ClientOk, typename ItemOk>
  std::optional<Taken> Take(const ClientOk& client_ok, const ItemOk& item_ok) {
    constexpr size_t kInteractive = static_cast<size_t>(WorkClass::kInteractive);
    constexpr size_t kBatch = static_cast<size_t>(WorkClass::kBatch);
    constexpr size_t kBackground = static_cast<size_t>(WorkClass::kBackground);
    const bool batch_first = interactive_in_a_row_ >= kInteractiveInARow;
    for (const size_t lane :
         {batch_first ? kBatch : kInteractive, batch_first ? kInteractive : kBatch, kBackground}) {
      std::optional<Taken> taken = TakeFrom(lane, client_ok, item_ok);
      if (!taken.has_value()) continue;
      if (lane == kInteractive) {
        interactive_in_a_row_ = std::min(interactive_in_a_row_ + 1, kInteractiveInARow);
      } else if (lane == kBatch) {
        interactive_in_a_row_ = 0;
      }
      return taken;
    }
    return std::nullopt;
  }
  std::optional<Taken> Take() {
    return Take([](const std::string&) { return true; }, [](const T&) { return true; });
  }

  // Whether Take(any client, item_ok) would give one.
  template <typename ItemOk>
  bool Any(const ItemOk& item_ok) const {
    return std::any_of(places_.begin(), places_.end(),
                       [&](const auto& place) { return item_ok(place.first); });
  }

  bool empty() const { return places_.empty(); }
  // Places, not items: an item counts once per flow it stands in.
  size_t size() const { return places_.size(); }

 private:
  using Position = std::pair<int, uint64_t>;
  using Items = std::map<Position, T>;
  struct Place {
    size_t lane;
    std::string client;
    Position position;
  };

  static constexpr int kInteractiveInARow = 2;
  // Clients whose last turn is remembered after their queue ran empty: who forgets them serves them first.
  static constexpr size_t kRememberedClients = 4096;

  void Drop(const Place& place) {
    auto& clients = lanes_[place.lane];
    const auto client = clients.find(place.client);
    client->second.erase(place.position);
    if (client->second.empty()) clients.erase(client);
  }

  template <typename ClientOk, typename ItemOk>
  std::optional<Taken> TakeFrom(size_t lane, const ClientOk& client_ok, const ItemOk& item_ok) {
    std::vector<std::pair<uint64_t, const std::string*>> order;  // by last turn
    for (const auto& [client, items] : lanes_[lane]) {
      if (!client_ok(client)) continue;
      const auto served = served_.find(client);
      order.emplace_back(served == served_.end() ? 0 : served->second, &client);
    }
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return std::tie(a.first, *a.second) < std::tie(b.first, *b.second);
    });
    for (const auto& [turn, client] : order) {
      for (const auto& [position, item] : lanes_[lane][*client]) {
        if (!item_ok(item)) continue;
        Taken taken{item, *client};
        Remove(taken.item);
        if (served_.size() >= kRememberedClients && served_.count(taken.client) == 0) Forget();
        served_[taken.client] = ++turns_;
        return taken;
      }
    }
    return std::nullopt;
  }

  // Drops the client served longest ago.
  void Forget() {
    served_.erase(std::min_element(served_.begin(), served_.end(),
                                   [](const auto& a, const auto& b) { return a.second < b.second; }));
  }

  std::array<std::map<std::string, Items>, 3> lanes_;  // clients with items, by class
  std::unordered_multimap<T, Place> places_;
  std::unordered_map<std::string, uint64_t> served_;  // each client's last turn
  uint64_t turns_ = 0;
  uint64_t next_position_ = 0;
  int interactive_in_a_row_ = 0;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_FAIR_QUEUE_H_
