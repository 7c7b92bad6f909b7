/* Says what files contain: `classify FOLDER FILE ...`, where the folder is what
** `python examples/python/classify.py prepare FOLDER` writes.
*/
#include <ekiden/runtime.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

static const std::string spaces = "\t\n\v\f\r ";
static const size_t block = 4096;

struct About {
  size_t begin = 0, end = 0;
  int32_t padding = 0;
  std::vector<std::string> labels;
};

static About read_about(const std::string& path) {
  std::ifstream file(path);
  About about;
  file >> about.begin >> about.end >> about.padding;
  for (std::string label; file >> label;) about.labels.push_back(label);
  return about;
}

static std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ekiden::Error("OSError", "read '" + path + "': no such file");
  return {std::istreambuf_iterator<char>(file), {}};
}

/* The first bytes of a file and its last ones, without the white space around it. */
static std::vector<int32_t> features(const std::string& data, const About& about) {
  std::string head = data.substr(0, block);
  head = head.substr(std::min(head.find_first_not_of(spaces), head.size()), about.begin);
  std::string tail = data.substr(data.size() - std::min(data.size(), block));
  tail = tail.substr(0, tail.find_last_not_of(spaces) + 1);
  tail = tail.substr(tail.size() - std::min(tail.size(), about.end));
  std::vector<int32_t> row(about.begin + about.end, about.padding);
  auto byte = [](char each) { return static_cast<int32_t>(static_cast<unsigned char>(each)); };
  std::transform(head.begin(), head.end(), row.begin(), byte);
  std::transform(tail.rbegin(), tail.rend(), row.rbegin(), byte);
  return row;
}

static void run(const std::string& folder, const std::vector<std::string>& names) {
  About about = read_about(folder + "/magika.txt");
  ekiden::Model model(ekiden::Module::load(folder + "/magika.eki"));
  std::string input = model.inputs().at(0);
  for (const std::string& name : names) {
    std::vector<int32_t> row = features(read_file(name), about);
    auto given = ekiden::Tensor::empty({1, static_cast<int64_t>(row.size())},
                                       ekiden::dtype_of<int32_t>());
    std::copy(row.begin(), row.end(), given.data<int32_t>());
    ekiden::Tensor result = model.run({{input, given}});
    std::vector<float> scores = result.to_vector<float>();
    auto best = std::max_element(scores.begin(), scores.end());
    const std::string& label = about.labels.at(static_cast<size_t>(best - scores.begin()));
    std::printf("%s: %s %.1f %%\n", name.c_str(), label.c_str(), 100 * static_cast<double>(*best));
  }
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: classify FOLDER FILE ...\n");
    return 2;
  }
  try {
    run(argv[1], {argv + 2, argv + argc});
  } catch (const ekiden::Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.kind().c_str(), error.what());
    return 1;
  }
  return 0;
}
